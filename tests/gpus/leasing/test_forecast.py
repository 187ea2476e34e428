"""Forecasts of a ticket's start, and cases without one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpus.errors import Verdict
from gpus.leasing.values import Pushed, StartsIn
from gpus.protocol import PushOutcome
from tests.gpus.leasing import circuit_rig
from tests.gpus.leasing.circuit_rig import fail
from tests.gpus.leasing.rig import MODEL, POOL, Rig

rig = circuit_rig.rig  # its circuits open soon


def push(rig: Rig, *jobs: str, **ticket: Any) -> Pushed:
    return rig.leases.push(POOL, [rig.ticket(job, **ticket) for job in jobs])


def busy(rig: Rig, slots: int = 1) -> None:
    """One server with all slots busy."""
    rig.server(slots=slots)
    for number in range(slots):
        rig.push(f"runs{number}r")  # none of those that are learnt from
        rig.must_claim()


def test_a_push_and_an_explanation_give_the_same_forecast(rig: Rig) -> None:
    busy(rig, slots=2)
    assert push(rig, "first").results[0].starts == StartsIn(0.5, 2.0, 0), "a second each on two slots"
    found = push(rig, *(f"j{number}" for number in range(20))).results
    for number in (0, 19):
        seen = rig.leases.queue_status(POOL, rig.tickets[f"j{number}"])
        p50, p90 = (round(seen.guess_seconds * math.exp(log), 3) for log in (seen.p50_log, seen.p90_log))
        assert found[number].starts == StartsIn(p50, p90, seen.seen)
        assert found[number].position == seen.position == number + 2
    again = rig.leases.push(POOL, [rig.tickets["j19"]]).results[0]
    assert (again.outcome, again.starts) == (PushOutcome.DUPLICATE, found[19].starts)


def test_the_forecast_learns_from_real_starts(rig: Rig) -> None:
    """Runs of ten seconds where the line believes in one."""
    rig.server()
    rig.push("first", "second")
    lease = rig.must_claim()
    for number in range(200):
        rig.push(f"j{number:03}")
        rig.wait(10)
        lease = rig.next(lease, 1.0)
    result = push(rig, "one more").results[0]
    assert result.starts is not None
    assert result.starts.seen > 20
    assert result.starts.p50_seconds == pytest.approx(10 * result.position, rel=0.5)


def test_a_job_that_starts_at_once_has_no_forecast(rig: Rig) -> None:
    rig.server()
    found = push(rig, "now").results[0]
    assert (found.outcome, found.starts) == (PushOutcome.LEASED, None)
    rig.must_claim()
    held = rig.leases.push(POOL, [rig.tickets["now"]]).results[0]
    assert (held.outcome, held.starts) == (PushOutcome.HELD, None)


def test_no_forecast_while_the_start_cannot_be_known(rig: Rig) -> None:
    assert push(rig, "no-server").results[0].starts is None
    busy(rig)
    rig.leases.set_paused_tenants(POOL, ["paused"])
    assert push(rig, "p", tenant="paused").results[0].starts is None
    assert push(rig, "waits").results[0].starts is not None
    rig.server(models=("other",))
    assert push(rig, "model-paused").results[0].starts is None
    rig.server(desired="draining")
    assert push(rig, "all-drain").results[0].starts is None


def test_no_forecast_without_a_working_slot(rig: Rig) -> None:
    rig.server()
    rig.push("runs")
    rig.release(rig.must_claim(), "suspect")
    assert rig.states() == ["quarantined"]
    assert push(rig, "waits").results[0].starts is None


def test_models_that_circuits_keep_from_every_server_are_named(rig: Rig) -> None:
    for name in ("s1", "s2"):
        rig.server(name)
    rig.push(*(f"j{number}" for number in range(9)))
    rig.leases.rest_server("s2", 0.5)
    fail(rig, 3, Verdict.SERVER)
    rig.wait(0.6)
    assert push(rig, "other-server").failing == frozenset()
    rig.leases.rest_server("s1", 30)
    fail(rig, 3, Verdict.SERVER)
    pushed = push(rig, "waits")
    assert pushed.failing == {MODEL}
    assert pushed.results[0].starts is None
    assert rig.leases.spare_slots(POOL, "t1", [MODEL]).failing == {MODEL}
    rig.wait(40)
    assert push(rig, "half-open").failing == frozenset()
    assert rig.leases.spare_slots(POOL, "t1", [MODEL]).failing == frozenset()


def test_a_model_with_an_open_circuit_is_reported_as_failing(rig: Rig) -> None:
    rig.server(models=(MODEL, "other"))
    rig.push(*(f"j{number}" for number in range(4)))
    fail(rig, 3, Verdict.MODEL)
    assert push(rig, "waits").failing == {MODEL}
    assert push(rig, "o", model="other").failing == frozenset()
    assert rig.leases.spare_slots(POOL, "t1", [MODEL, "other"]).failing == {MODEL}


@pytest.mark.parametrize("slots", [1, 4])
def test_the_starts_of_a_batch_grow_with_the_place(rig: Rig, slots: int) -> None:
    busy(rig, slots)
    forecasts = [one.starts for one in push(rig, *(f"j{number:03}" for number in range(400))).results]
    seconds = [one.p50_seconds for one in forecasts if one]
    assert len(seconds) == 400
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(400 / slots)
