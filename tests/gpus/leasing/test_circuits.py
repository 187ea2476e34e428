"""Circuit breakers: a server or model that fails repeatedly by its own fault rests, and then gets one
trial."""

from __future__ import annotations

from gpus.errors import Verdict
from gpus.leasing.scripts import Client
from gpus.leasing.values import CircuitRules
from gpus.protocol import CircuitKind, CircuitState, ExpiryVerdict, ReleaseMode
from tests.gpus.leasing.circuit_harness import (
    EITHER,
    MODEL,
    SERVER,
    WELL,
    end,
    expire,
    fail,
    harness,
    jobs,
    model,
    server,
)
from tests.gpus.leasing.lease_harness import POOL, WORKER, LeaseHarness

__all__ = ["harness"]


def test_a_failing_server_rests_and_then_gets_one_trial(harness: LeaseHarness) -> None:
    harness.server(slots=3)
    harness.push(*jobs("j", 9))
    fail(harness, 2, SERVER)
    assert server(harness) is CircuitState.CLOSED
    fail(harness, 1, SERVER)
    assert server(harness) is CircuitState.OPEN
    assert harness.claim() is None
    harness.wait(10.1)
    probe = harness.must_claim()
    assert server(harness) is CircuitState.HALF_OPEN
    harness.wait(5)
    assert harness.claim() is None, "exactly one tries"
    end(harness, probe, WELL)
    assert server(harness) is CircuitState.CLOSED
    assert [harness.claim() is not None for _ in range(4)] == [True, True, True, False]


def test_the_rest_doubles_with_each_failed_trial_up_to_the_cap(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*jobs("j", 12))
    fail(harness, 3, SERVER)
    for rest in (10, 20, 35, 35):
        harness.wait(rest - 0.1)
        assert harness.claim() is None, rest
        harness.wait(0.2)
        fail(harness, 1, SERVER)
    assert harness.leases.circuits(POOL, ["s1"]).servers["s1"].opens == 5


def test_a_success_resets_the_count_of_failures(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*jobs("j", 9))
    for verdict in (SERVER, SERVER, WELL, SERVER, SERVER):
        fail(harness, 1, verdict)
    assert server(harness) is CircuitState.CLOSED


def test_one_jobs_possible_bad_input_opens_no_circuit(harness: LeaseHarness) -> None:
    harness.server()
    for _ in range(6):
        harness.push("j1")
        fail(harness, 1, EITHER)
    assert (server(harness), model(harness)) == (CircuitState.CLOSED, CircuitState.CLOSED)


def test_an_unreachable_server_opens_with_a_single_job(harness: LeaseHarness) -> None:
    harness.server()
    for _ in range(3):
        harness.push("j1")
        fail(harness, 1, SERVER)
    assert server(harness) is CircuitState.OPEN


def test_a_blocked_models_tickets_keep_waiting(harness: LeaseHarness) -> None:
    for name in ("s1", "s2"):
        harness.server(name, 2, ("flux", "sdxl"))
    harness.push(*jobs("bad", 20))
    fail(harness, 3)  # where it is warm: that server seems to blame
    assert (server(harness, "s1"), model(harness)) == (CircuitState.OPEN, CircuitState.CLOSED)
    fail(harness, 1)
    assert model(harness) is CircuitState.OPEN
    assert (server(harness, "s1"), server(harness, "s2")) == (CircuitState.CLOSED, CircuitState.CLOSED)
    assert not harness.leases.circuits(POOL, ["s1", "s2"]).servers, "no server is to blame"
    assert harness.claim() is None
    harness.push("good", model="sdxl")
    assert harness.must_claim().job_id == "good"
    assert harness.waiting() == 16
    harness.wait(10.1)
    probe = harness.must_claim()
    assert probe.model == "flux"
    assert harness.claim() is None, "exactly one tries"
    end(harness, probe, MODEL)
    harness.wait(19)
    assert harness.claim() is None
    harness.wait(1.1)
    end(harness, harness.must_claim(), WELL)
    assert model(harness) is CircuitState.CLOSED
    assert [harness.claim() is not None for _ in range(3)] == [True, True, True]


def test_a_slot_that_ends_a_job_does_not_go_on_with_a_model_that_rests(harness: LeaseHarness) -> None:
    harness.server("s1", 1, ("flux", "sdxl"))
    harness.push(*jobs("bad", 9))
    harness.push("good", model="sdxl", tenant="t2")
    lease = harness.must_claim()
    given = [lease.model]
    for _ in range(3):
        following = harness.release(lease, gpu_seconds=1.0, next_attempt_id=f"n{len(given)}", verdict=MODEL)
        assert following is not None
        given.append(following.model)
        if following.model == "sdxl":
            break
        lease = following
    assert given[-1] == "sdxl", given


def test_one_broken_server_of_two_opens_instead_of_the_model(harness: LeaseHarness) -> None:
    harness.server("s1", 1)
    harness.server("s2", 1)
    harness.push(*jobs("j", 30))
    for _ in range(8):
        for lease in [one for one in (harness.claim(), harness.claim()) if one is not None]:
            end(harness, lease, EITHER if lease.server == "s1" else WELL)
    assert server(harness, "s1") is CircuitState.OPEN
    assert server(harness, "s2") is CircuitState.CLOSED
    assert model(harness) is CircuitState.CLOSED


def test_an_end_of_a_job_from_before_the_opening_does_not_count(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.push(*jobs("j", 9))
    old = [harness.must_claim(), harness.must_claim()]
    fail(harness, 3, SERVER)
    end(harness, old[0], SERVER)
    end(harness, old[1], WELL)
    found = harness.leases.circuits(POOL, ["s1"]).servers["s1"]
    assert (found.state, found.opens, round(found.left_seconds)) == (CircuitState.OPEN, 1, 10)


def test_a_trial_without_a_verdict_is_repeated(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push(*jobs("j", 9))
    fail(harness, 3, SERVER)
    harness.wait(10.1)
    fail(harness, 1, Verdict.NOTHING)
    assert server(harness) is CircuitState.HALF_OPEN
    again = harness.must_claim()
    assert harness.claim() is None
    expire(harness)
    assert harness.leases.resolve_expired(again.ref, ExpiryVerdict.QUARANTINED)
    harness.wait(2.1)
    assert harness.must_claim().slot != again.slot, (
        "the slot that tried is in quarantine: the other one tries"
    )


def test_a_lost_trial_of_a_model_is_repeated_by_another_job(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push(*jobs("j", 9))
    fail(harness, 3, MODEL)
    harness.wait(10.1)
    gone = harness.must_claim()
    assert harness.claim() is None
    expire(harness)
    assert [one.ref for one in harness.leases.expired()] == [gone.ref]
    assert harness.leases.resolve_expired(gone.ref, ExpiryVerdict.FREE)
    assert harness.must_claim().job_id != gone.job_id


def test_an_operator_closes_a_circuit(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push(*jobs("j", 9))
    fail(harness, 3, SERVER)
    closed, wakes = harness.leases.reset_circuit(CircuitKind.SERVER, "s1", POOL)
    assert closed
    assert wakes
    assert server(harness) is CircuitState.CLOSED
    assert harness.leases.reset_circuit(CircuitKind.SERVER, "s1", POOL) == (False, ())
    fail(harness, 3, MODEL)
    assert harness.claim() is None
    closed, wakes = harness.leases.reset_circuit(CircuitKind.MODEL, "flux", POOL)
    assert closed
    assert wakes
    assert harness.claim() is not None
    assert harness.leases.reset_circuit(CircuitKind.MODEL, "flux", POOL) == (False, ())


def test_a_blocked_model_needs_no_wakes_and_its_push_is_queued(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push(*jobs("j", 5))
    fail(harness, 3, MODEL)
    assert harness.leases.fill() == ()
    pushed = harness.leases.push(POOL, [harness.ticket("late", priority=1)])
    assert (pushed.results[0].outcome.value, pushed.wakes) == ("queued", ())
    harness.wait(10.1)
    assert harness.leases.fill()


def test_switching_a_server_off_and_on_keeps_its_circuit(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push(*jobs("j", 9))
    fail(harness, 3, SERVER)
    harness.server(slots=2, desired="off")
    harness.wait(10.1)
    assert harness.claim() is None
    harness.server(slots=2, desired="on")
    harness.wait(2.1)
    assert harness.claim() is not None
    assert harness.claim() is None


def test_a_rebuilt_index_has_closed_circuits(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*jobs("j", 9))
    fail(harness, 3, MODEL)
    assert {name for name in harness.all_keys() if name.startswith(("circuits", "kept"))}
    harness.open()
    assert not {name for name in harness.all_keys() if name.startswith(("circuits", "kept"))}


def test_without_a_number_of_failures_no_circuit_opens(client: Client, fleet: str) -> None:
    harness = LeaseHarness(client, fleet, circuit_rules=CircuitRules(failures=0)).open()
    harness.server()
    harness.push(*jobs("j", 30))
    fail(harness, 20, SERVER)
    assert not harness.leases.circuits(POOL, ["s1"]).servers


def test_the_same_end_sent_twice_counts_as_one_failure(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*jobs("j", 9))
    lease = harness.must_claim()
    for _ in range(3):
        harness.leases.release(lease.ref, ReleaseMode.ENDED, worker=WORKER, gpu_seconds=1.0, verdict=SERVER)
    assert harness.leases.circuits(POOL, ["s1"]).servers["s1"].strikes == 1
