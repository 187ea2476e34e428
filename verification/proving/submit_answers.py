"""The answers that clients may get during a fault. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from verification.proving.records import Answer

LONGEST_SECONDS = 3.5
ALWAYS, DATABASE, AWAY = "always", "database", "away"
"""A submit is accepted within 3.5 s · or may be refused with 503 and Retry-After · or may get no answer."""


def gateway_findings(answers: Iterable[Answer], may: str, begin: float, end: float) -> list[str]:
    """Return findings among these answers. answers: tries that were slow, refused or unanswered. may: one of
    the three."""
    wrongs = []
    for one in answers:
        if not begin <= one.asked_at <= end:
            continue
        if one.status == 503 and not one.retry_after:
            wrongs.append("a submit got 503 without Retry-After")
        elif one.status not in (0, 200, 202, 503):
            wrongs.append(f"a submit got {one.status}")
        elif may == ALWAYS and one.status == 503:
            wrongs.append("a submit got 503")
        elif may != AWAY and one.status == 0:
            wrongs.append(f"a submit got no answer in {one.took:.1f} s")
        elif may == ALWAYS and one.took > LONGEST_SECONDS:
            wrongs.append(f"a submit was accepted after {one.took:.1f} s")
    return sorted(set(wrongs))
