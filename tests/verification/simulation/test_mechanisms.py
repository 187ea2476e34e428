"""Each mechanism of the protocol, removed: a law breaks, or, if another guard is behind it, there is a
cost."""

from __future__ import annotations

import pytest

from dispatcher_project.supervisor.embedded import find_valkey
from tests.verification.simulation.player import Player

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]


@pytest.mark.parametrize(
    ("mechanism", "faults", "law", "size"),
    [
        ("result fence", "cut_from_redis,pause,pause_in_a_step", "(7)", (12, 6, 12)),
        ("reconciler", "redis_refuses,redis_silent,cut_from_redis", "(5)", (24, 12, 22)),
        ("expired leases", "kill,kill_in_a_step", "dead:", (6, 6, 0)),
        (
            "quarantine",
            "cut_from_redis,gpu_replies_lost,gpu_unreachable,kill",
            "oversubscribed:",
            (24, 12, 23),
        ),
        ("generation marker", "redis_fails_over", "oversubscribed:", (24, 12, 1)),
        ("idempotent requests", "redis_calls_doubled", "lost:", (12, 12, 5)),
        ("later starts", "kill", "early:", (12, 6, 3)),
        ("quota's sweep", "quota_cut", "quota:", (6, 6, 0)),
        ("quota in the rebuild", "quota_cut,redis_flushed", "quota:", (12, 12, 14)),
        ("ends in the quota", "quota_cut", "explained:", (12, 6, 2)),
        ("end of the quota", "quota_cut", "quota:", (6, 6, 1)),
        ("quota reason", "quota_cut", "explained: job", (12, 6, 0)),
        ("quota reason of one tenant only", "quota_cut", "explained: job", (12, 6, 1)),
        ("quota at submit", "quota_cut", "explained: tenant", (12, 6, 0)),
        ("figures of the quota", "quota_cut", "explained: ", (12, 6, 0)),
        ("look at the row,start compare-and-set", "redis_refuses,cut_from_redis", "(4)", (12, 6, 3)),
    ],
)
def test_a_law_breaks_without(
    player: Player, mechanism: str, faults: str, law: str, size: tuple[int, int, int]
) -> None:
    """size: jobs and faults, as few as show it soon; and a seed that showed it, or is near one."""
    jobs, each, first = size
    played = player.play(
        60, first=first, without=mechanism, faults=faults, jobs=jobs, faults_each=each, law=law
    )
    assert any(one.startswith(law) for one in played["broken"]), played["broken"]


@pytest.mark.parametrize(
    ("mechanism", "law", "first"), [("unread notices", "stuck:", 0), ("one writer per run", "(9)", 4)]
)
def test_a_law_of_runs_breaks_without(player: Player, mechanism: str, law: str, first: int) -> None:
    """first: a seed that showed it."""
    faults = "advancer_paused,advancer_killed,hints_lost_and_doubled,pause_in_a_step"
    played = player.play(
        20, first=first, without=mechanism, faults=faults, jobs=3, faults_each=10, runs=8, law=law
    )
    assert any(one.startswith(law) for one in played["broken"]), played["broken"]


_OF_RUNS = "advancer_killed,hints_lost_and_doubled,kill_in_a_step"
_OF_SCHEDULES = "beat_down,kill_in_a_step,second_sweeper"


@pytest.mark.parametrize(
    ("mechanism", "faults", "law", "size"),
    [
        ("cancel beside a failure", _OF_RUNS, "uncancelled:", (5, 0, 1)),
        ("handler at the deadline", _OF_RUNS, "(9)", (5, 0, 20)),
        ("refused restart of erased runs", "hints_lost_and_doubled", "run", (8, 0, 11)),
        ("data of erased jobs", _OF_RUNS, "run", (5, 0, 10)),
        ("output of a retried sub-run", _OF_RUNS, "(11)", (6, 0, 8)),
        ("overlap of firings", _OF_SCHEDULES, "(16)", (0, 6, 0)),
        ("pause of schedules", _OF_SCHEDULES, "paused:", (0, 6, 0)),
        ("limit of catching up", "beat_down", "(16)", (0, 6, 3)),
        ("reopened firings", "", "(16)", (1, 6, 70004)),
    ],
)
def test_a_law_of_workflows_breaks_without(
    player: Player, mechanism: str, faults: str, law: str, size: tuple[int, int, int]
) -> None:
    """size: runs and schedules, and a seed that showed it, or is near one."""
    runs, schedules, first = size
    sizes = {"jobs": 2, "faults_each": 8, "runs": runs, "schedules": schedules}
    played = player.play(20, first=first, without=mechanism, faults=faults, law=law, **sizes)
    assert any(one.startswith(law) for one in played["broken"]), played["broken"]


@pytest.mark.parametrize(
    ("mechanism", "law", "first"),
    [("keys of triggers", "trigger:", 0), ("open due times at an edit", "edited:", 1)],
)
def test_a_law_of_edited_schedules_breaks_without(
    player: Player, mechanism: str, law: str, first: int
) -> None:
    """first: a seed that showed it."""
    sizes = {"jobs": 2, "faults_each": 8, "schedules": 1, "edited": 2}
    played = player.play(10, first=first, without=mechanism, faults="beat_down", law=law, **sizes)
    assert any(one.startswith(law) for one in played["broken"]), played["broken"]


def test_without_the_check_before_it_a_start_is_refused_by_the_row(
    player: Player,
) -> None:
    """Either of the two keeps the laws; without the first, runs are begun that are stopped again."""
    faults = "redis_refuses,cut_from_redis"
    missing, whole = (
        player.play(1, first=1, without=name, faults=faults, jobs=12) for name in ("look at the row", "")
    )
    assert missing["broken"] == whole["broken"] == []
    assert missing["cost"]["refused_starts"] > whole["cost"]["refused_starts"]


def test_without_the_generation_marker_the_unique_slot_keeps_the_law(player: Player) -> None:
    """An outdated index leases a slot twice: the database refuses the second, as long as its constraint
    exists."""
    options = {"faults": "redis_fails_over", "jobs": 24, "faults_each": 6, "until": "double_bookings"}
    missing = player.play(60, first=4, without="generation marker,unique slot", **options)
    behind = player.play(missing["played"], first=4, without="generation marker", **options)["cost"]
    assert missing["cost"]["double_bookings"] > 0
    assert (behind["double_bookings"], behind["refused_bookings"] > 0) == (0, True)


def test_without_adoption_runs_are_repeated_that_could_have_been_polled(player: Player) -> None:
    faults = "kill,kill_in_a_step"
    missing, whole = (player.play(1, without=name, faults=faults, jobs=12) for name in ("adoption", ""))
    assert missing["broken"] == whole["broken"] == []
    assert missing["cost"]["async_runs"] > whole["cost"]["async_runs"]
