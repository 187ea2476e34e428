"""`Prefer` is read as RFC 7240 has it."""

from __future__ import annotations

import pytest

from foundation.http_api.prefer import preferences


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("wait=5", {"wait": "5"}),
        ('Respond-Async , WAIT = "10"', {"respond-async": "", "wait": "10"}),
        ("wait=1, wait=2", {"wait": "1"}),
        ("respond-async; wait=5", {"respond-async": ""}),
        ('note="a, wait=5; b \\" c", wait=3; x="y,z"', {"note": 'a, wait=5; b " c', "wait": "3"}),
        ("not-respond-async", {"not-respond-async": ""}),
        ('wait="5, respond-async', {"wait": '"5, respond-async'}),
        (", ,;=", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_only_preferences_count_and_the_first_of_a_name(header: str, found: dict[str, str]) -> None:
    assert preferences(header) == found


def test_a_hostile_header_takes_linear_time() -> None:
    """Each quote of an unfinished string could begin a scan to the end: 4e8 steps."""
    assert len(preferences('a="' + '\\"' * 20_000)) == 1
