from __future__ import annotations

import pytest

from jobs.reports import history


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    """Tests share a minute, and not their rows."""
    history.forget()
