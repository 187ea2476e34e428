"""A cancel that is requested while the run's answer is read: the answer frees the slot if no other proof
can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpus.errors import BadInput, GpuBusy, Interrupted, RunTimedOut, ServerFailed, ServerLost
from gpus.models import Server
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, CancelUnsupported, Finished
from gpus.runners.http_runner import SyncHttpRunner
from jobs.execution.attempt_run import Order, RunOutcome, Wait
from jobs.models import Attempt, Job
from jobs.operations.jobs import CancelOutcome, cancel_job, slot_held_until
from tests.jobs.execution.run_bench import Bench, ScriptedRunner
from tests.support.by_process import run_sweep
from tests.support.factories import make_model
from tests.support.servers.plain_server import PlainServer
from tests.support.servers.raw_server import RawServer, Visit
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state


class Read(ScriptedRunner):
    """Its request is cancelled while it is read; then it is answered by `answer`, if it was not cut."""

    answer_ends_run = True

    def __init__(self, answer: Any, **scripted: Any) -> None:
        super().__init__(starts=[answer], **scripted)


def bench_of(runner: ScriptedRunner, *orders: Order) -> Bench:
    bench = Bench(runner, in_background=lambda work: work())

    def during(abort: Abort) -> None:
        for order in orders:
            bench.run.order(order)
        if abort.fired:
            runner.starts.insert(0, Interrupted())

    runner.on_start = during
    return bench


def cancelled(runner: ScriptedRunner) -> RunOutcome:
    outcome = bench_of(runner, Order.CANCEL).run.step()
    assert isinstance(outcome, RunOutcome)
    assert outcome.ending.error is not None
    return outcome


@pytest.mark.parametrize("answer", [Finished(1), ServerFailed(), BadInput()])
def test_any_answer_to_the_request_ends_it_as_cancelled(answer: Any) -> None:
    outcome = cancelled(Read(answer, cancels=[False]))
    assert (outcome.ending.error.code, outcome.ending.suspect) == ("cancelled", False)  # type: ignore[union-attr]
    assert (outcome.result, outcome.evidence) == (None, "the server answered its request")


def test_a_server_that_confirms_ends_the_read_and_is_asked_once() -> None:
    runner = Read(Finished(1), cancels=[True])
    outcome = cancelled(runner)
    assert outcome.evidence == "server confirmed the cancel"
    assert runner.calls == ["start", "cancel None"]


def test_a_refusal_stays_what_it_is() -> None:
    outcome = cancelled(Read(GpuBusy(), cancels=[False]))
    assert outcome.ending.error.code == "busy"  # type: ignore[union-attr]


def test_a_connection_that_breaks_leaves_the_slot_to_the_quarantine() -> None:
    assert cancelled(Read(ServerLost(), cancels=[False])).ending.suspect


def test_a_request_without_an_answer_is_proven_over_by_the_models_limit_alone() -> None:
    bench = bench_of(Read(RunTimedOut(), cancels=[False] * 99), Order.CANCEL)
    assert isinstance(bench.run.step(), Wait)
    bench.clock.move(60.0)
    outcome = bench.run.step()
    assert isinstance(outcome, RunOutcome)
    assert outcome.evidence == "the model's run limit has passed"


def test_a_run_that_is_unknown_to_its_server_is_not_polled_for_ever() -> None:
    bench = bench_of(Read(Finished(1), cancels=[False] * 3))
    bench.evidence = "the server does not run it"

    def late(abort: Abort) -> None:
        bench.clock.move(5.0)
        bench.run.order(Order.CANCEL)
        assert abort.fired
        raise Interrupted

    bench.runner.on_start = late
    assert isinstance(bench.run.step(), Wait)
    bench.clock.move(1.0)
    outcome = bench.run.step()
    assert isinstance(outcome, RunOutcome)
    assert outcome.evidence == "the server does not run it"


def test_a_server_that_does_not_listen_is_asked_again_after_a_while() -> None:
    runner = Read(Finished(1), cancels=[False, False])
    bench = bench_of(runner)

    def watched(_: Abort) -> None:
        for seconds in (0.0, 0.5, 0.5, 1.0):
            bench.clock.move(seconds)
            bench.run.order(Order.CANCEL)

    runner.on_start = watched
    bench.run.step()
    assert runner.calls == ["start", "cancel None", "cancel None"]


def test_the_jobs_deadline_does_not_cut_a_cancelled_read() -> None:
    bench = Bench(Read(Finished(1), cancels=[False] * 9), in_background=lambda work: work(), deadline=10.0)

    def during(abort: Abort) -> None:
        bench.run.order(Order.CANCEL)
        bench.clock.move(11.0)
        bench.run.check_time()
        assert not abort.fired

    bench.runner.on_start = during
    outcome = bench.run.step()
    assert isinstance(outcome, RunOutcome)
    assert outcome.evidence == "the server answered its request"


def test_a_lost_lease_still_ends_the_read() -> None:
    runner = Read(Finished(1), cancels=[False, False])
    outcome = bench_of(runner, Order.CANCEL, Order.LEASE_LOST).run.step()
    assert isinstance(outcome, RunOutcome)
    assert outcome.ending.error is not None
    assert outcome.ending.error.code == "lease_lost"


def test_a_server_without_a_cancel_endpoint_is_asked_once() -> None:
    runner = Read(Finished(1), cancels=[CancelUnsupported()])
    bench = bench_of(runner)

    def watched(_: Abort) -> None:
        for _ in range(3):
            bench.clock.move(3.0)
            bench.run.order(Order.CANCEL)

    runner.on_start = watched
    outcome = bench.run.step()
    assert isinstance(outcome, RunOutcome)
    assert outcome.evidence == "the server answered its request"
    assert runner.calls == ["start", "cancel None"]


# -- with a real server ----------------------------------------------------------------------------------


@pytest.fixture(params=[404, 405, 501])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlainServer]:
    with PlainServer(tmp_path, request.param) as server:
        yield server


@pytest.fixture
def harness(
    valkey: Any, fleet: str, plain: PlainServer, request: pytest.FixtureRequest
) -> Iterator[WorkerHarness]:
    harness = make_harness(valkey.url, fleet, make_model("m", max_run_seconds=300.0), f"{plain.url}/run")
    yield harness
    plain.open("a")
    harness.close()


@pytest.mark.django_db(transaction=True)
def test_a_plain_servers_slot_is_free_as_soon_as_its_request_is_answered(
    harness: WorkerHarness, plain: PlainServer
) -> None:
    worker = harness.worker()
    job, next_job = harness.submit({"gate": "a"}), harness.submit({"seconds": 0})
    thread = harness.work(worker)
    wait_for(lambda: plain.began() == 1 and state(job) == "running")
    assert cancel_job(job.id, ports=harness.ports) is CancelOutcome.REQUESTED
    until = slot_held_until(job.id)
    assert until is not None
    assert (until - Attempt.objects.get(job=job).started_at).total_seconds() == 300.0

    def asked() -> bool:
        return any(run._background_cancel.was_requested for _, run in worker.runs.all())

    wait_for(asked)
    assert (state(job), plain.began()) == ("running", 1)
    plain.open("a")
    wait_for(lambda: state(job) == "cancelled")
    thread.join(60)
    harness.work(worker).join(60)
    wait_for(lambda: state(next_job) == "completed")  # the slot is free
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.evidence) == ("cancelled", "the server answered its request")
    assert Job.objects.get(id=job.id).result is None
    assert slot_held_until(job.id) is None


NOT_FOUND, RESULT = '404 Not Found\r\n{"detail": "Not Found"}', '200 OK\r\n{"image": "a run of its own"}'
RUNNING, LATER = '202 Accepted\r\n{"status": "cancelling", "running": true}', "503 Busy\r\n{}"
GUESSED, NAMED = ModelSpec("m", "m"), ModelSpec("m", "m", cancel_endpoint_template="/stop/{job_id}")


@pytest.mark.parametrize(
    ("model", "tells_health", "answer", "asked"),
    [
        (GUESSED, False, RESULT, 0),
        (GUESSED, None, RESULT, 1),
        (GUESSED, True, RESULT, 1),
        (GUESSED, True, NOT_FOUND, 1),
        (GUESSED, True, "405 No\r\n", 1),
        (GUESSED, True, "501 No\r\n", 1),
        (GUESSED, True, LATER, 3),
        (GUESSED, True, RUNNING, 3),
        (NAMED, False, NOT_FOUND, 3),
        (NAMED, False, RUNNING, 3),
    ],
)
def test_a_guessed_cancel_path_is_asked_where_the_server_may_have_one(
    model: ModelSpec, tells_health: bool | None, answer: str, asked: int
) -> None:
    ended = threading.Event()
    status, _, body = answer.partition("\r\n")

    def script(visit: Visit) -> None:
        if visit.read_request().startswith(b"POST /run "):
            ended.wait(30)
            visit.answer()
        else:
            head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            visit.send(head.encode() + body.encode())

    with RawServer(script) as server:
        endpoint = Endpoint("gpu-1", server.url, tells_health=tells_health)
        bench = Bench(
            SyncHttpRunner(model), model=model, endpoint=endpoint, in_background=lambda work: work()
        )

        def cancel() -> None:
            server.asked.wait(30)
            for _ in range(3):
                bench.clock.move(3.0)
                bench.run.order(Order.CANCEL)
            ended.set()

        thread = threading.Thread(target=cancel, daemon=True)
        thread.start()
        outcome = bench.run.step()
        thread.join(30)
    assert isinstance(outcome, RunOutcome)
    assert outcome.evidence == "the server answered its request"
    assert len([sent for sent in server.requests if not sent.startswith(b"POST /run ")]) == asked


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("any_path", [True, False])
def test_a_cancel_posts_nothing_to_a_server_without_a_health_endpoint(
    valkey: Any, fleet: str, tmp_path: Path, any_path: bool
) -> None:
    with PlainServer(tmp_path, any_path=any_path) as plain:
        harness = make_harness(valkey.url, fleet, make_model("m", max_run_seconds=300.0), f"{plain.url}/run")
        try:
            run_sweep("lock_sync", harness.ports)
            assert Server.objects.get().tells_health is False
            worker = harness.worker()
            job = harness.submit({"gate": "a"})
            thread = harness.work(worker)
            wait_for(lambda: plain.began() == 1 and state(job) == "running")
            cancel_job(job.id, ports=harness.ports)
            has_asked: Callable[[], bool] = lambda: any(  # noqa: E731
                run._background_cancel.was_requested and not run._background_cancel._is_requesting
                for _, run in worker.runs.all()
            )
            wait_for(has_asked)
            plain.open("a")
            wait_for(lambda: state(job) == "cancelled")
            thread.join(60)
            assert [(run["event"], run["path"]) for run in plain.runs()] == [
                ("began", "/run"),
                ("ended", "/run"),
            ]
        finally:
            plain.open("a")
            harness.close()
