"""Forecasts of a ticket's start, and cases without one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpus.errors import Verdict
from gpus.leasing.values import Pushed, StartsIn
from gpus.protocol import PushOutcome
from tests.gpus.leasing import circuit_harness
from tests.gpus.leasing.circuit_harness import fail
from tests.gpus.leasing.lease_harness import MODEL, POOL, LeaseHarness

harness = circuit_harness.harness  # its circuits open soon


def push(harness: LeaseHarness, *jobs: str, **ticket: Any) -> Pushed:
    return harness.leases.push(POOL, [harness.ticket(job, **ticket) for job in jobs])


def busy(harness: LeaseHarness, slots: int = 1) -> None:
    """One server with all slots busy."""
    harness.server(slots=slots)
    for number in range(slots):
        harness.push(f"runs{number}r")  # none of those that are learnt from
        harness.must_claim()


def test_a_push_and_an_explanation_give_the_same_forecast(harness: LeaseHarness) -> None:
    busy(harness, slots=2)
    assert push(harness, "first").results[0].starts == StartsIn(0.5, 2.0, 0), "a second each on two slots"
    found = push(harness, *(f"j{number}" for number in range(20))).results
    for number in (0, 19):
        seen = harness.leases.queue_status(POOL, harness.tickets[f"j{number}"])
        p50, p90 = (round(seen.guess_seconds * math.exp(log), 3) for log in (seen.p50_log, seen.p90_log))
        assert found[number].starts == StartsIn(p50, p90, seen.seen)
        assert found[number].position == seen.position == number + 2
    again = harness.leases.push(POOL, [harness.tickets["j19"]]).results[0]
    assert (again.outcome, again.starts) == (PushOutcome.DUPLICATE, found[19].starts)


def test_the_forecast_learns_from_real_starts(harness: LeaseHarness) -> None:
    """Runs of ten seconds where the line believes in one."""
    harness.server()
    harness.push("first", "second")
    lease = harness.must_claim()
    for number in range(200):
        harness.push(f"j{number:03}")
        harness.wait(10)
        lease = harness.next(lease, 1.0)
    result = push(harness, "one more").results[0]
    assert result.starts is not None
    assert result.starts.seen > 20
    assert result.starts.p50_seconds == pytest.approx(10 * result.position, rel=0.5)


def test_a_job_that_starts_at_once_has_no_forecast(harness: LeaseHarness) -> None:
    harness.server()
    found = push(harness, "now").results[0]
    assert (found.outcome, found.starts) == (PushOutcome.LEASED, None)
    harness.must_claim()
    held = harness.leases.push(POOL, [harness.tickets["now"]]).results[0]
    assert (held.outcome, held.starts) == (PushOutcome.HELD, None)


def test_no_forecast_while_the_start_cannot_be_known(harness: LeaseHarness) -> None:
    assert push(harness, "no-server").results[0].starts is None
    busy(harness)
    harness.leases.set_paused_tenants(POOL, ["paused"])
    assert push(harness, "p", tenant="paused").results[0].starts is None
    assert push(harness, "waits").results[0].starts is not None
    harness.server(models=("other",))
    assert push(harness, "model-paused").results[0].starts is None
    harness.server(desired="draining")
    assert push(harness, "all-drain").results[0].starts is None


def test_no_forecast_without_a_working_slot(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("runs")
    harness.release(harness.must_claim(), "suspect")
    assert harness.states() == ["quarantined"]
    assert push(harness, "waits").results[0].starts is None


def test_models_that_circuits_keep_from_every_server_are_named(harness: LeaseHarness) -> None:
    for name in ("s1", "s2"):
        harness.server(name)
    harness.push(*(f"j{number}" for number in range(9)))
    harness.leases.rest_server("s2", 0.5)
    fail(harness, 3, Verdict.SERVER)
    harness.wait(0.6)
    assert push(harness, "other-server").failing == frozenset()
    harness.leases.rest_server("s1", 30)
    fail(harness, 3, Verdict.SERVER)
    pushed = push(harness, "waits")
    assert pushed.failing == {MODEL}
    assert pushed.results[0].starts is None
    assert harness.leases.spare_slots(POOL, "t1", [MODEL]).failing == {MODEL}
    harness.wait(40)
    assert push(harness, "half-open").failing == frozenset()
    assert harness.leases.spare_slots(POOL, "t1", [MODEL]).failing == frozenset()


def test_a_model_with_an_open_circuit_is_reported_as_failing(harness: LeaseHarness) -> None:
    harness.server(models=(MODEL, "other"))
    harness.push(*(f"j{number}" for number in range(4)))
    fail(harness, 3, Verdict.MODEL)
    assert push(harness, "waits").failing == {MODEL}
    assert push(harness, "o", model="other").failing == frozenset()
    assert harness.leases.spare_slots(POOL, "t1", [MODEL, "other"]).failing == {MODEL}


@pytest.mark.parametrize("slots", [1, 4])
def test_the_starts_of_a_batch_grow_with_the_place(harness: LeaseHarness, slots: int) -> None:
    busy(harness, slots)
    forecasts = [one.starts for one in push(harness, *(f"j{number:03}" for number in range(400))).results]
    seconds = [one.p50_seconds for one in forecasts if one]
    assert len(seconds) == 400
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(400 / slots)
