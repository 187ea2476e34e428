"""A job's own limit or deadline ends its run: no other tenant loses a slot, a server or a model by that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpus.errors import BadInput, Interrupted, RunTimedOut, ServerFailed, ServerLost, Verdict
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import CircuitRules
from gpus.models import QuarantinedSlot
from gpus.runners.base import Abort, Accepted, Finished, PollFailed, StillRunning
from gpus.runners.transport import Unreadable
from jobs.execution.attempt_run import Order, RunOutcome, Wait
from jobs.models import Attempt, Job
from tests.jobs.execution.run_bench import Bench, ScriptedRunner
from tests.support.factories import make_tenant
from tests.support.servers.plain_server import PlainServer
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, plain_server_harness, state

MODELS_LIMIT = 60.0


class Read(ScriptedRunner):
    answer_ends_run = True


def read_past(answer: Any, **limits: float) -> tuple[Bench, Any]:
    """A request that is answered after the job's own limit or deadline; the server does not heed a cancel."""
    runner = Read(starts=[answer], cancels=[False] * 99)
    bench = Bench(runner, in_background=lambda work: work(), **limits)

    def during(abort: Abort) -> None:
        bench.clock.move(6.0)
        bench.run.check_time()
        assert not abort.fired, "the request goes on being read"

    runner.on_start = during
    return bench, bench.run.step()


LIMITS = pytest.mark.parametrize(
    ("limits", "code"), [({"limit": 5.0}, "timeout"), ({"deadline": 5.0}, "stopped_by_deadline")]
)


@LIMITS
@pytest.mark.parametrize("answer", [Finished(1), ServerFailed(), BadInput()])
def test_an_answer_frees_the_slot_and_blames_neither_server_nor_model(
    answer: Any, limits: dict[str, float], code: str
) -> None:
    _, over = read_past(answer, **limits)
    assert isinstance(over, RunOutcome)
    assert over.ending.error is not None
    assert (over.ending.error.code, over.ending.suspect) == (code, False)
    assert over.ending.error.blames is Verdict.NOTHING
    assert (over.result, over.evidence) == (None, "the server answered its request")


@LIMITS
def test_a_server_that_hangs_up_when_it_is_asked_to_stop_is_not_blamed(
    limits: dict[str, float], code: str
) -> None:
    _, over = read_past(ServerLost(), **limits)
    assert isinstance(over, RunOutcome)
    assert over.ending.error is not None
    assert (over.ending.suspect, over.ending.error.blames) == (True, Verdict.NOTHING)


@LIMITS
def test_a_request_without_an_answer_keeps_its_slot_up_to_the_models_limit(
    limits: dict[str, float], code: str
) -> None:
    bench, step = read_past(RunTimedOut(), **limits)
    assert isinstance(step, Wait)
    over = bench.wait_through()
    assert bench.clock.elapsed >= MODELS_LIMIT
    assert (over.ending.error.code, over.evidence) == (code, "the model's run limit has passed")
    assert over.ending.error.blames is Verdict.NOTHING


@LIMITS
@pytest.mark.parametrize(
    ("said", "frees"),
    [
        (Finished(1), True),
        (ServerFailed(), True),
        (StillRunning(), False),
        (PollFailed("503"), False),
        (Unreadable("no JSON"), True),
    ],
)
def test_a_polled_run_that_can_not_be_stopped_is_polled_on(
    said: Any, frees: bool, limits: dict[str, float], code: str
) -> None:
    runner = ScriptedRunner(starts=[Accepted("r1")], polls=[StillRunning()], cancels=[False] * 99)
    bench = Bench(runner, **limits).accept()
    runner.polls += [StillRunning(), said]
    over = bench.wait_through()
    assert (bench.clock.elapsed < MODELS_LIMIT) is frees
    assert (over.ending.error.code, over.ending.suspect, over.result) == (code, False, None)


@LIMITS
def test_a_deploy_leaves_what_can_not_be_stopped_to_the_quarantine(
    limits: dict[str, float], code: str
) -> None:
    bench, step = read_past(Interrupted(), **limits)
    assert isinstance(step, Wait)
    bench.run.order(Order.INTERRUPT)
    over = bench.run.step()
    assert isinstance(over, RunOutcome)
    assert over.ending.suspect


def test_a_model_is_blamed_for_its_own_limit_alone() -> None:
    def ends(limit: float) -> Verdict:
        runner = ScriptedRunner(starts=[Accepted("r1")], cancels=[True])
        error: Any = Bench(runner, limit=limit).accept().wait_through().ending.error
        return Verdict(error.blames)

    assert ends(limit=5.0) is Verdict.NOTHING
    assert ends(limit=MODELS_LIMIT) is Verdict.EITHER
    assert ends(limit=1000.0) is Verdict.EITHER


@pytest.mark.parametrize(("seconds", "blames"), [(6.0, Verdict.NOTHING), (1.0, Verdict.EITHER)])
def test_a_runner_that_enforces_the_limit_itself_ends_the_run_the_same_way(
    seconds: float, blames: Verdict
) -> None:
    """6 s: the job's own limit of 5 s; 1 s: its watchdog's."""
    late = RunTimedOut("killed")
    late.process_died = True
    runner = ScriptedRunner(starts=[late], cancels=[True])
    bench = Bench(runner, limit=5.0)
    runner.on_start = lambda _: bench.clock.move(seconds)
    over = bench.run.step()
    assert isinstance(over, RunOutcome)
    assert over.ending.error is late
    assert (late.blames, over.ending.process_died) == (blames, True)


def test_a_runner_that_enforces_the_limit_itself_is_not_interrupted_by_the_watcher() -> None:
    """Its time counts from when the model is loaded."""
    runner = ScriptedRunner(starts=[Finished(1)])
    bench = Bench(runner, limit=5.0, in_background=lambda work: work())

    def load(abort: Abort) -> None:
        bench.clock.move(30.0)
        bench.run.check_time()
        assert not abort.fired

    runner.on_start = load
    over = bench.run.step()
    assert isinstance(over, RunOutcome)
    assert over.result == 1


# -- two tenants, real servers -----------------------------------------------------------------------------

SLOTS, ATTACKS = 3, 12
STRICT = CircuitRules(failures=2, rest_seconds=600.0)


def attack(harness: WorkerHarness, payload: dict[str, Any], **times: Any) -> list[Job]:
    """More jobs of one tenant than there are slots, each of which ends by its own times."""
    harness.leases = RedisLeases(harness.leases._scripts._client, harness.leases.fleet, circuit_rules=STRICT)
    harness.ports = replace(harness.ports, leases=lambda fleet: harness.leases)
    evil = make_tenant("evil")
    return [harness.submit(payload, tenant=evil, max_retries=0, **times) for _ in range(ATTACKS)]


def work_all(harness: WorkerHarness) -> None:
    worker = harness.worker()
    for _ in range(SLOTS):
        harness.work(worker)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("harness", [{"slots": SLOTS}], indirect=True)
def test_one_tenants_short_limits_open_no_circuit(harness: WorkerHarness) -> None:
    jobs = attack(harness, {"seconds": 30}, max_run_seconds=0.01)
    theirs = harness.submit({"seconds": 0}, tenant=make_tenant("neighbour"))
    work_all(harness)
    worker = harness.workers[0]

    def is_over() -> bool:
        harness.work(worker).join(60)
        return {state(job) for job in jobs} == {"failed"} and state(theirs) == "completed"

    wait_for(is_over)
    assert not QuarantinedSlot.objects.filter(freed_at=None).exists()
    found = harness.leases.circuits("m", ["gpu-1"])
    assert (dict(found.servers), dict(found.models)) == ({}, {})


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[PlainServer]:
    with PlainServer(tmp_path) as server:
        yield server


@pytest.fixture
def plain_fleet(valkey: Any, fleet: str, plain: PlainServer) -> Iterator[WorkerHarness]:
    with plain_server_harness(valkey.url, fleet, plain, slots=SLOTS) as harness:
        yield harness


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["limit", "deadline"])
def test_a_plain_servers_slot_is_charged_to_the_tenant_until_it_answers(
    plain_fleet: WorkerHarness, plain: PlainServer, kind: str
) -> None:
    """It would otherwise be blocked for the model's 300 s, for all tenants, and be charged to none."""
    harness, soon = plain_fleet, plain_fleet.ports.clock.now() + timedelta(seconds=2)
    times: dict[str, Any] = {"max_run_seconds": 0.01} if kind == "limit" else {"deadline_at": soon}
    attack(harness, {"gate": "a"}, **times)
    work_all(harness)
    worker = harness.workers[0]

    def all_asked() -> bool:
        return [run._background_cancel.was_requested for _, run in list(worker.runs.all())] == [True] * SLOTS

    wait_for(all_asked)
    theirs = harness.submit({"seconds": 0}, tenant=make_tenant("neighbour"))
    assert [view.state for view in harness.leases.slots("gpu-1")] == ["leased"] * SLOTS
    assert not QuarantinedSlot.objects.exists()
    ended = Attempt.objects.exclude(error_code="")
    plain.open("a")

    def is_over() -> bool:
        harness.work(worker).join(60)  # this test has no broker: the worker gets no wakes for the other jobs
        return state(theirs) == "completed" and ended.count() >= SLOTS

    wait_for(is_over)
    assert {attempt.evidence for attempt in ended.order_by("started_at")[:SLOTS]} == {
        "the server answered its request"
    }
    assert not QuarantinedSlot.objects.exists()
    assert dict(harness.leases.circuits("m", []).models) == {}
