"""Single steps of runs, commits and settlement under faults."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from django.db import OperationalError

from gpus.errors import Interrupted, ServerLost
from gpus.protocol import Endpoint, Lease, ModelSpec, ReleaseMode
from gpus.runners.base import Accepted, Response, RunRequest
from gpus.runners.http_runner import AsyncHttpRunner
from jobs.execution.attempt_run import Order, Remote, RunOutcome, Wait
from jobs.execution.completion import Completion, EndWritten, PendingRelease
from jobs.execution.group_commit import GroupCommitWriter
from jobs.transitions import Ended
from tests.jobs.execution.run_bench import ASYNC, Bench, ScriptedRunner
from tests.support.factories import make_job
from tests.support.fakes import AbsentLeases, make_ports


def away():
    raise OperationalError("server closed the connection unexpectedly")


def test_one_write_that_always_fails_does_not_stop_the_others(monkeypatch):
    from contextlib import nullcontext

    from jobs.execution import group_commit

    monkeypatch.setattr(group_commit.transaction, "atomic", nullcontext)
    monkeypatch.setattr(group_commit, "_database_answers", lambda: True)
    writer = GroupCommitWriter(lambda outcomes: None, gather_seconds=0.05, retry_seconds=(0.01,))

    def poison():
        raise OperationalError("stack depth limit exceeded")  # SQLSTATE 54001

    first, _bad, last = writer.submit(lambda: 1), writer.submit(poison), writer.submit(lambda: 3)
    writer.start()
    assert first.result(30) == 1
    assert last.result(30) == 3


def test_a_database_away_for_a_moment_does_not_end_a_healthy_run():
    runner = ScriptedRunner(starts=[Accepted("r1")])
    bench = Bench(runner)
    bench.pushed = away
    assert bench.run.step() == Remote("r1")
    step = bench.run.step()
    assert isinstance(step, Wait), step


def test_an_interrupt_while_the_database_is_away_costs_no_try():
    runner = ScriptedRunner(cancels=[False])
    bench = Bench(runner, remote_id="r1")
    bench.run.remote_committed = False
    bench.prove_free = away
    bench.run.order(Order.INTERRUPT)
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert isinstance(step.ending.error, Interrupted)


def test_a_lost_server_while_the_database_is_away_is_an_end_and_no_exception():
    bench = Bench(ScriptedRunner(starts=[ServerLost()]))
    bench.pushed = away
    assert isinstance(bench.run.step(), RunOutcome)


def test_an_unreadable_pushed_body_does_not_free_the_slot():
    RunRequest("j", "a", ASYNC, Endpoint("gpu-1", "http://gpu-1/generate"), {}, "gpu-1/0", 1)
    bench = Bench(ScriptedRunner(), remote_id="r1")
    bench.run.runner.read_pushed = AsyncHttpRunner(ASYNC).read_pushed
    bench.push = {"progress": 0.5}
    step = bench.run.step()
    assert not isinstance(step, RunOutcome) or step.ending.suspect, step


class Answers:
    def __init__(self, response):
        self.response = response

    def request(self, *a, **k):
        return self.response


def test_a_run_that_was_accepted_without_an_id_may_still_be_busy():
    bench = Bench(ScriptedRunner())
    bench.run._runner = AsyncHttpRunner(ASYNC, Answers(Response(200, {}, b'{"status": "processing"}')))
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert step.ending.suspect


def test_max_poll_time_is_no_proof_that_the_gpu_is_free():
    model = ModelSpec(
        "m",
        "m",
        "async",
        poll_endpoint_template="/s/{id}",
        max_poll_time=60.0,
        max_run_seconds=3600.0,
    )
    bench = Bench(ScriptedRunner(cancels=[False] * 99), model=model, remote_id="r1")
    clock, run = bench.clock, bench.run
    run.order(Order.CANCEL)
    assert isinstance(run.step(), Wait)
    clock.move(61)
    step = run.step()
    assert not (isinstance(step, RunOutcome) and not step.ending.suspect), step


def test_a_result_that_was_pushed_wins_over_a_limit_that_passed_meanwhile():
    bench = Bench(ScriptedRunner(), remote_id="r1")
    bench.push = {"result": 1}
    bench.run._limit_at = bench.run.began  # adopted after max_poll_time
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert step.result == 1


def test_a_result_that_was_pushed_wins_over_a_cancel():
    bench = Bench(ScriptedRunner(), remote_id="r1")
    bench.push = {"result": 1}
    bench.run.order(Order.CANCEL)
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert step.result == 1


def _lease(n, pool="m"):
    return Lease(pool, f"gpu-{n}/0", f"j{n}", f"a{n}", 1, "m", "t", 5, 1, 1, 0.0)


class Recorder:
    def __init__(self):
        self.released = []

    def release(self, ref, mode, **k):
        self.released.append(ref)

    def confirm_ends(self, refs):
        return ()


def test_a_dead_redis_of_one_fleet_does_not_hold_slots_of_others():
    settlement = Completion(make_ports(), name="w", on_lost=lambda ref: None)
    dead, alive = AbsentLeases(), Recorder()
    for leases, lease in ((dead, _lease(1)), (alive, _lease(2))):
        settlement._release_retries.add(PendingRelease(leases, lease, ReleaseMode.ENDED, 0.0))
    settlement.retry_releases()
    assert alive.released


def test_two_threads_settle_at_once():
    settlement = Completion(make_ports(), name="w", on_lost=lambda ref: None)
    one, two = _lease(1), _lease(2)

    class Slow(Recorder):
        """While its `confirm_ends` is under way, the watcher settles the same ends."""

        busy = False

        def confirm_ends(self, refs):
            if not self.busy:
                self.busy = True
                settlement.retry_releases()
            return ()

    slow, other = Slow(), Recorder()
    settlement._unconfirmed = {
        one.ref: EndWritten(Ended(won=False), slow, one.ref),
        two.ref: EndWritten(Ended(won=False), other, two.ref),
    }
    settlement._confirm_ends()


@pytest.mark.database
@pytest.mark.django_db
def test_a_pushed_progress_does_not_hide_the_pushed_result():
    from jobs.execution.pushed_results import accept_push
    from jobs.models import PushedResult

    ports = make_ports()
    job = make_job("m")
    accept_push(job.id, "A" * 26, {"status": "processing", "progress": 0.5}, 40, ports=ports)
    accept_push(job.id, "A" * 26, {"status": "success", "result": 1}, 34, ports=ports)
    assert PushedResult.objects.get().body["status"] == "success"


def test_an_await_for_a_writer_that_has_ended_ends_too():
    from jobs.execution.gpu_worker import GpuWorker

    writer = GroupCommitWriter(lambda outcomes: None)
    writer.start()
    writer.stop(2)
    future = writer.submit(lambda: None)  # a claim that was under way while the worker stopped
    claimed = SimpleNamespace(started=future, refused=None)
    ended = threading.Event()

    def wait() -> None:
        GpuWorker(make_ports()).claims._await_start(claimed)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert ended.wait(2.5)
