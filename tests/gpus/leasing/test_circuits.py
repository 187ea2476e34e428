"""Circuit breakers: a server or model that fails repeatedly by its own fault rests, and then gets one
trial."""

from __future__ import annotations

from gpus.errors import Verdict
from gpus.leasing.scripts import Client
from gpus.leasing.values import CircuitRules
from gpus.protocol import CircuitKind, CircuitState, ExpiryVerdict, ReleaseMode
from tests.gpus.leasing.circuit_rig import (
    EITHER,
    MODEL,
    SERVER,
    WELL,
    end,
    expire,
    fail,
    jobs,
    model,
    rig,
    server,
)
from tests.gpus.leasing.rig import POOL, WORKER, Rig

__all__ = ["rig"]


def test_a_failing_server_rests_and_then_gets_one_trial(rig: Rig) -> None:
    rig.server(slots=3)
    rig.push(*jobs("j", 9))
    fail(rig, 2, SERVER)
    assert server(rig) is CircuitState.CLOSED
    fail(rig, 1, SERVER)
    assert server(rig) is CircuitState.OPEN
    assert rig.claim() is None
    rig.wait(10.1)
    probe = rig.must_claim()
    assert server(rig) is CircuitState.HALF_OPEN
    rig.wait(5)
    assert rig.claim() is None, "exactly one tries"
    end(rig, probe, WELL)
    assert server(rig) is CircuitState.CLOSED
    assert [rig.claim() is not None for _ in range(4)] == [True, True, True, False]


def test_the_rest_doubles_with_each_failed_trial_up_to_the_cap(rig: Rig) -> None:
    rig.server()
    rig.push(*jobs("j", 12))
    fail(rig, 3, SERVER)
    for rest in (10, 20, 35, 35):
        rig.wait(rest - 0.1)
        assert rig.claim() is None, rest
        rig.wait(0.2)
        fail(rig, 1, SERVER)
    assert rig.leases.circuits(POOL, ["s1"]).servers["s1"].opens == 5


def test_a_success_resets_the_count_of_failures(rig: Rig) -> None:
    rig.server()
    rig.push(*jobs("j", 9))
    for verdict in (SERVER, SERVER, WELL, SERVER, SERVER):
        fail(rig, 1, verdict)
    assert server(rig) is CircuitState.CLOSED


def test_one_jobs_possible_bad_input_opens_no_circuit(rig: Rig) -> None:
    rig.server()
    for _ in range(6):
        rig.push("j1")
        fail(rig, 1, EITHER)
    assert (server(rig), model(rig)) == (CircuitState.CLOSED, CircuitState.CLOSED)


def test_an_unreachable_server_opens_with_a_single_job(rig: Rig) -> None:
    rig.server()
    for _ in range(3):
        rig.push("j1")
        fail(rig, 1, SERVER)
    assert server(rig) is CircuitState.OPEN


def test_a_blocked_models_tickets_keep_waiting(rig: Rig) -> None:
    for name in ("s1", "s2"):
        rig.server(name, 2, ("flux", "sdxl"))
    rig.push(*jobs("bad", 20))
    fail(rig, 3)  # where it is warm: that server seems to blame
    assert (server(rig, "s1"), model(rig)) == (CircuitState.OPEN, CircuitState.CLOSED)
    fail(rig, 1)
    assert model(rig) is CircuitState.OPEN
    assert (server(rig, "s1"), server(rig, "s2")) == (CircuitState.CLOSED, CircuitState.CLOSED)
    assert not rig.leases.circuits(POOL, ["s1", "s2"]).servers, "no server is to blame"
    assert rig.claim() is None
    rig.push("good", model="sdxl")
    assert rig.must_claim().job_id == "good"
    assert rig.waiting() == 16
    rig.wait(10.1)
    probe = rig.must_claim()
    assert probe.model == "flux"
    assert rig.claim() is None, "exactly one tries"
    end(rig, probe, MODEL)
    rig.wait(19)
    assert rig.claim() is None
    rig.wait(1.1)
    end(rig, rig.must_claim(), WELL)
    assert model(rig) is CircuitState.CLOSED
    assert [rig.claim() is not None for _ in range(3)] == [True, True, True]


def test_a_slot_that_ends_a_job_does_not_go_on_with_a_model_that_rests(rig: Rig) -> None:
    rig.server("s1", 1, ("flux", "sdxl"))
    rig.push(*jobs("bad", 9))
    rig.push("good", model="sdxl", tenant="t2")
    lease = rig.must_claim()
    given = [lease.model]
    for _ in range(3):
        following = rig.release(lease, gpu_seconds=1.0, next_attempt_id=f"n{len(given)}", verdict=MODEL)
        assert following is not None
        given.append(following.model)
        if following.model == "sdxl":
            break
        lease = following
    assert given[-1] == "sdxl", given


def test_one_broken_server_of_two_opens_instead_of_the_model(rig: Rig) -> None:
    rig.server("s1", 1)
    rig.server("s2", 1)
    rig.push(*jobs("j", 30))
    for _ in range(8):
        for lease in [one for one in (rig.claim(), rig.claim()) if one is not None]:
            end(rig, lease, EITHER if lease.server == "s1" else WELL)
    assert server(rig, "s1") is CircuitState.OPEN
    assert server(rig, "s2") is CircuitState.CLOSED
    assert model(rig) is CircuitState.CLOSED


def test_an_end_of_a_job_from_before_the_opening_does_not_count(rig: Rig) -> None:
    rig.server(slots=4)
    rig.push(*jobs("j", 9))
    old = [rig.must_claim(), rig.must_claim()]
    fail(rig, 3, SERVER)
    end(rig, old[0], SERVER)
    end(rig, old[1], WELL)
    found = rig.leases.circuits(POOL, ["s1"]).servers["s1"]
    assert (found.state, found.opens, round(found.left_seconds)) == (CircuitState.OPEN, 1, 10)


def test_a_trial_without_a_verdict_is_repeated(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push(*jobs("j", 9))
    fail(rig, 3, SERVER)
    rig.wait(10.1)
    fail(rig, 1, Verdict.NOTHING)
    assert server(rig) is CircuitState.HALF_OPEN
    again = rig.must_claim()
    assert rig.claim() is None
    expire(rig)
    assert rig.leases.resolve_expired(again.ref, ExpiryVerdict.QUARANTINED)
    rig.wait(2.1)
    assert rig.must_claim().slot != again.slot, "the slot that tried is in quarantine: the other one tries"


def test_a_lost_trial_of_a_model_is_repeated_by_another_job(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push(*jobs("j", 9))
    fail(rig, 3, MODEL)
    rig.wait(10.1)
    gone = rig.must_claim()
    assert rig.claim() is None
    expire(rig)
    assert [one.ref for one in rig.leases.expired()] == [gone.ref]
    assert rig.leases.resolve_expired(gone.ref, ExpiryVerdict.FREE)
    assert rig.must_claim().job_id != gone.job_id


def test_an_operator_closes_a_circuit(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push(*jobs("j", 9))
    fail(rig, 3, SERVER)
    closed, wakes = rig.leases.reset_circuit(CircuitKind.SERVER, "s1", POOL)
    assert closed
    assert wakes
    assert server(rig) is CircuitState.CLOSED
    assert rig.leases.reset_circuit(CircuitKind.SERVER, "s1", POOL) == (False, ())
    fail(rig, 3, MODEL)
    assert rig.claim() is None
    closed, wakes = rig.leases.reset_circuit(CircuitKind.MODEL, "flux", POOL)
    assert closed
    assert wakes
    assert rig.claim() is not None
    assert rig.leases.reset_circuit(CircuitKind.MODEL, "flux", POOL) == (False, ())


def test_a_blocked_model_needs_no_wakes_and_its_push_is_queued(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push(*jobs("j", 5))
    fail(rig, 3, MODEL)
    assert rig.leases.fill() == ()
    pushed = rig.leases.push(POOL, [rig.ticket("late", priority=1)])
    assert (pushed.results[0].outcome.value, pushed.wakes) == ("queued", ())
    rig.wait(10.1)
    assert rig.leases.fill()


def test_switching_a_server_off_and_on_keeps_its_circuit(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push(*jobs("j", 9))
    fail(rig, 3, SERVER)
    rig.server(slots=2, desired="off")
    rig.wait(10.1)
    assert rig.claim() is None
    rig.server(slots=2, desired="on")
    rig.wait(2.1)
    assert rig.claim() is not None
    assert rig.claim() is None


def test_a_rebuilt_index_has_closed_circuits(rig: Rig) -> None:
    rig.server()
    rig.push(*jobs("j", 9))
    fail(rig, 3, MODEL)
    assert {name for name in rig.all_keys() if name.startswith(("circuits", "kept"))}
    rig.open()
    assert not {name for name in rig.all_keys() if name.startswith(("circuits", "kept"))}


def test_without_a_number_of_failures_no_circuit_opens(client: Client, fleet: str) -> None:
    rig = Rig(client, fleet, circuit_rules=CircuitRules(failures=0)).open()
    rig.server()
    rig.push(*jobs("j", 30))
    fail(rig, 20, SERVER)
    assert not rig.leases.circuits(POOL, ["s1"]).servers


def test_the_same_end_sent_twice_counts_as_one_failure(rig: Rig) -> None:
    rig.server()
    rig.push(*jobs("j", 9))
    lease = rig.must_claim()
    for _ in range(3):
        rig.leases.release(lease.ref, ReleaseMode.ENDED, worker=WORKER, gpu_seconds=1.0, verdict=SERVER)
    assert rig.leases.circuits(POOL, ["s1"]).servers["s1"].strikes == 1
