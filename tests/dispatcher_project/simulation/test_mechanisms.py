"""Each mechanism of the protocol, taken out: a law breaks, or, where another guard is behind it, it costs."""

from __future__ import annotations

import pytest

from dispatcher_project.embedded import find_valkey

from .player import Player

pytestmark = [
    pytest.mark.sqlite_only,
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]


@pytest.mark.parametrize(
    ("mechanism", "faults", "law", "jobs"),
    [
        ("result fence", "cut_from_redis,pause,pause_in_a_step", "(7)", 12),
        ("reconciler", "redis_refuses,redis_silent,cut_from_redis", "(5)", 12),
        ("expired leases", "kill,kill_in_a_step", "lost:", 12),
        ("quarantine", "cut_from_redis,gpu_replies_lost,gpu_unreachable,kill", "oversubscribed:", 24),
        ("generation marker", "redis_fails_over", "oversubscribed:", 24),
        ("idempotent requests", "redis_calls_doubled", "lost:", 24),
        ("later starts", "kill", "early:", 12),
        ("quota's sweep", "quota_cut", "quota:", 24),
        ("quota in the rebuild", "quota_cut,redis_flushed", "quota:", 24),
        ("ends in the quota", "quota_cut", "told:", 24),
        ("end of the quota", "quota_cut", "quota:", 24),
        ("quota told", "quota_cut", "told: job", 24),
        ("quota told to who waits for it", "quota_cut", "told: job", 24),
        ("quota at the door", "quota_cut", "told: tenant", 24),
        ("figures of the quota", "quota_cut", "told: ", 24),
        ("look at the row,start compare-and-set", "redis_refuses,cut_from_redis", "(4)", 12),
    ],
)
def test_a_law_breaks_without(player: Player, mechanism: str, faults: str, law: str, jobs: int) -> None:
    """jobs: as few as show it soon."""
    broken = player.play(60, without=mechanism, faults=faults, jobs=jobs, faults_each=jobs // 2)["broken"]
    assert any(one.startswith(law) for one in broken), broken


def test_a_start_is_refused_by_the_row_where_the_look_before_it_is_missing(
    player: Player,
) -> None:
    """Either of the two keeps the laws; without the first, runs are begun that are stopped again."""
    faults = "redis_refuses,cut_from_redis"
    missing, whole = (player.play(3, without=name, faults=faults) for name in ("look at the row", ""))
    assert missing["broken"] == whole["broken"] == []
    assert missing["cost"]["refused_starts"] > whole["cost"]["refused_starts"]


def test_the_unique_slot_stands_behind_the_generation_marker(player: Player) -> None:
    """An index that lies gives a slot twice: the database refuses the second, as long as it has its own."""
    faults = "redis_fails_over"
    behind = player.play(2, without="generation marker", faults=faults, stops=False)["cost"]
    assert (behind["double_bookings"], behind["refused_bookings"] > 0) == (0, True)
    missing = player.play(2, without="generation marker,unique slot", faults=faults, stops=False)["cost"]
    assert missing["double_bookings"] > 0


def test_without_adoption_runs_are_repeated_that_somebody_could_have_gone_on_polling(player: Player) -> None:
    faults = "kill,kill_in_a_step"
    missing, whole = (player.play(3, without=name, faults=faults) for name in ("adoption", ""))
    assert missing["broken"] == whole["broken"] == []
    assert missing["cost"]["async_runs"] > whole["cost"]["async_runs"]
