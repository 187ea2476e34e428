"""Times on pages have seconds, in the order that sorts."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.utils.formats import date_format


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("DATE_FORMAT", "2026-03-01"),
        ("DATETIME_FORMAT", "2026-03-01 09:05:07"),
        ("SHORT_DATETIME_FORMAT", "2026-03-01 09:05:07"),
        ("TIME_FORMAT", "09:05:07"),
    ],
)
def test_a_time_is_shown_as_in_logs(name: str, shown: str) -> None:
    assert date_format(datetime(2026, 3, 1, 9, 5, 7), name) == shown
