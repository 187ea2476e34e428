"""Claims whose answer was lost are kept within a bound, and dropped once their fate is certain."""

from __future__ import annotations

from jobs.execution.claiming import HELD_BACK_SECONDS, MAX_UNCERTAIN, UncertainClaims


def test_an_uncertain_claim_is_forgotten_once_redis_has_not_granted_it_for_some_time() -> None:
    asked = UncertainClaims()
    asked.add("a", "main")
    asked.add("b", "other")
    asked.mark_not_granted("a", 10.0)
    asked.mark_not_granted("a", 10.0 + HELD_BACK_SECONDS - 0.1)
    assert asked.by_fleet() == {"main": ["a"], "other": ["b"]}
    asked.mark_not_granted("a", 10.0 + HELD_BACK_SECONDS)
    asked.mark_returned("b")
    assert asked.by_fleet() == {}


def test_an_outage_does_not_fill_the_memory() -> None:
    asked = UncertainClaims()
    for number in range(MAX_UNCERTAIN + 50):
        asked.add(f"a{number}", "main")
    assert asked.by_fleet()["main"] == [f"a{number}" for number in range(50, MAX_UNCERTAIN + 50)]
