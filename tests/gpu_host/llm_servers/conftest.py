from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu_host.llm_servers.box import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    if box.gpu is not None:
        box.gpu.stop()
