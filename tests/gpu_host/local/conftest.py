"""A model process shared by the tests of a module; tests that end it get a new one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.local_bench import Bench


@pytest.fixture(scope="module")
def module_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("local"))
    bench.gpu.start()
    yield bench
    bench.gpu.stop()


@pytest.fixture
def bench(module_bench: Bench) -> Bench:
    module_bench.heard.clear()
    module_bench.lines.clear()
    module_bench.events.clear()
    return module_bench


@pytest.fixture
def patient(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that heeds its cancel gets all the time it needs for that."""
    monkeypatch.setattr(bench.gpu, "options", replace(bench.gpu.options, cancel_seconds=30.0))
