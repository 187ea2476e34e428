"""Nine of ten jobs start within their estimated p90: real scripts, virtual time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.explain_intervals import measure
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.connect import connect
from gpus.leasing.values import QueueStatus
from jobs.explain.decide import explain
from jobs.explain.interval import UNKNOWABLE, starts_in
from jobs.explain.snapshot import Index, Reason, Servers, Snapshot

JOBS = 1_500


@pytest.mark.parametrize(
    "shape",
    [
        "heavy_tailed",
        pytest.param("steady", marks=pytest.mark.by_hand),
        pytest.param("bursty", marks=pytest.mark.by_hand),
    ],
)
def test_nine_of_ten_starts_are_within_the_p90(valkey: EmbeddedValkey, fleet: str, shape: str) -> None:
    client = connect(valkey.url)
    found = measure(client, shape, jobs=JOBS, seed=3, fleet=fleet)
    client.close()
    # of so few jobs it is 0.81 to 0.88, by the seed, where the benchmark's 5,000 come to 0.88 to 0.92
    assert 0.8 <= found.covered <= 0.98
    assert 0.3 <= found.share(lambda one: one.waited <= one.p50) <= 0.7


def snapshot(*, slots: dict[str, int] | None = None, **values: object) -> Snapshot:
    queue_status = QueueStatus(
        slots=slots or {"busy": 2},
        position=5,
        guess_seconds=10.0,
        p50_log=0.0,
        p90_log=math.log(3),
        rest_seconds=28.8,
        circuit_seconds=40.0,
    )
    return Snapshot(
        state=None, model="m", servers=Servers(on=1, slots=2), queue_status=queue_status, **values
    )  # type: ignore[arg-type]


def test_known_delays_are_added_to_the_estimate() -> None:
    now = snapshot(due_in_seconds=100.0)
    found = starts_in(now, explain(now))
    assert found is not None
    assert (found.p50_seconds, found.p90_seconds) == (110.0, pytest.approx(130.0))


@pytest.mark.parametrize(
    ("slots", "begin"),
    [
        ({"resting": 2}, 28.8),
        ({"circuit": 1, "quarantined": 1}, 40.0),
        ({"resting": 1, "circuit": 1}, 28.8),
        ({"resting": 1, "busy": 1}, 0.0),
        ({"resting": 1, "free": 1}, 0.0),
    ],
)
def test_the_estimate_includes_the_shortest_pause_if_all_slots_are_paused(
    slots: dict[str, int], begin: float
) -> None:
    now = snapshot(slots=slots)
    found = starts_in(now, [Reason("resting", "", "")])
    assert found is not None
    assert (found.p50_seconds, found.p90_seconds) == (
        pytest.approx(begin + 10.0),
        pytest.approx(begin + 30.0),
    )


@pytest.mark.parametrize("code", sorted(UNKNOWABLE))
def test_reasons_with_an_unknown_end_have_no_estimate(code: str) -> None:
    assert starts_in(snapshot(), [Reason(code, "", "")]) is None


def test_without_an_index_there_is_no_estimate() -> None:
    now = snapshot(index=Index.REBUILDING)
    assert starts_in(now, explain(now)) is None


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (
            1,
            (
                "(1 slot).",
                "1 slot that can run the job may",
                "About 1 job of 1 GPU-second runs before this one.",
            ),
        ),
        (
            2,
            (
                "(2 slots).",
                "2 slots that can run the job may",
                "About 2 jobs of 2 GPU-seconds run before this one.",
            ),
        ),
    ],
)
def test_a_reason_counts_in_singular_and_plural(count: int, said: tuple[str, ...]) -> None:
    now = snapshot(slots={"resting": count, "circuit": count, "quarantined": count})
    now = replace(now, queue_status=replace(now.queue_status, position=count + 1))
    result = " ".join(reason.message for reason in explain(now))
    assert result.count(said[0]) == 2
    assert all(part in result for part in said)
