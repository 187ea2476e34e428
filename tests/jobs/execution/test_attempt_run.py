"""An attempt's steps under a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gpus.errors import (
    BadInput,
    ConnectFailed,
    GpuBusy,
    Interrupted,
    ProcessDied,
    RunTimedOut,
    ServerLost,
)
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Accepted, Finished, PollFailed, Response, RunRequest, StillRunning
from gpus.runners.http_runner import SyncHttpRunner
from jobs.execution.attempt_run import HandedOver, Order, Remote, RunOutcome, Wait
from tests.jobs.execution.run_bench import Bench, ScriptedRunner


def test_a_sync_answer_is_the_end():
    assert Bench(ScriptedRunner(starts=[Finished({"url": "x"})])).run.step().result == {"url": "x"}


def test_an_accepted_run_is_polled_at_its_interval_until_it_is_done():
    runner = ScriptedRunner(starts=[Accepted("r1")], polls=[StillRunning(), StillRunning(), Finished(7)])
    bench = Bench(runner).accept()
    assert bench.wait_through().result == 7
    assert runner.calls == ["start", "poll r1", "poll r1", "poll r1"]
    assert bench.clock.elapsed == 9.0


def test_no_request_is_sent_under_a_lease_that_is_too_old():
    runner = ScriptedRunner(starts=[Finished(1)])
    bench = Bench(runner)
    bench.fresh = False
    outcome = bench.run.step()
    assert outcome.ending.error.code == "lease_lost"
    assert not outcome.ending.sent
    assert not outcome.ending.suspect
    assert runner.calls == []


@pytest.mark.parametrize(
    ("error", "suspect"),
    [(GpuBusy(), False), (ConnectFailed(), False), (BadInput(), False), (ServerLost(), True)],
)
def test_an_error_ends_the_attempt_with_its_price(error, suspect):
    outcome = Bench(ScriptedRunner(starts=[error])).run.step()
    assert outcome.ending.error is error
    assert outcome.ending.suspect is suspect


def test_transient_poll_failures_back_off_and_are_survived():
    runner = ScriptedRunner(
        starts=[Accepted("r1")],
        polls=[PollFailed("refused"), PollFailed("refused"), StillRunning(), Finished(1)],
    )
    bench = Bench(runner).accept()
    assert bench.wait_through().result == 1
    assert bench.clock.elapsed == 3 + 6 + 12 + 3


def test_a_server_that_forgot_the_run_lost_it():
    runner = ScriptedRunner(starts=[Accepted("r1")], polls=[PollFailed("404", gone=True)])
    outcome = Bench(runner).accept().wait_through()
    assert outcome.ending.error.code == "server_lost"
    assert outcome.ending.suspect


def test_a_run_past_its_limit_is_cancelled_and_times_out():
    runner = ScriptedRunner(starts=[Accepted("r1")])
    bench = Bench(runner).accept()
    outcome = bench.wait_through()
    assert outcome.ending.error.code == "timeout"
    assert not outcome.ending.suspect, "the server confirmed the cancel"
    assert bench.clock.elapsed == 60.0
    assert runner.calls[-1] == "cancel r1"


@pytest.mark.parametrize(("limit", "ends"), [(10.0, 10.0), (1000.0, 60.0)])
def test_a_job_lowers_its_models_limit_and_never_raises_it(limit: float, ends: float) -> None:
    bench = Bench(ScriptedRunner(starts=[Accepted("r1")]), limit=limit).accept()
    assert bench.wait_through().ending.error.code == "timeout"
    assert bench.clock.elapsed == ends


def test_an_answer_is_waited_for_up_to_the_models_limit() -> None:
    """The job's own one is asked for beside it, and does not end the read."""
    sync = ModelSpec("m", "m", max_run_seconds=60.0)
    endpoint = Endpoint("gpu-1", "http://gpu-1/")
    request = RunRequest("j", "a", sync, endpoint, {}, "gpu-1/0", 1, limit_seconds=3)
    transport = Heard()
    SyncHttpRunner(sync, transport).start(request, abort=Abort())
    assert transport.deadlines == [60.0]


class Heard:
    """A transport that notes how long it may take."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []

    def request(self, method: str, url: str, **how: Any) -> Response:
        self.deadlines.append(how["deadline_seconds"])
        return Response(200, {"content-type": "application/json"}, b'{"status": "success", "result": 1}')


def test_a_jobs_own_limit_proves_nothing_about_the_gpu() -> None:
    """That no run can still be going on is known after the model's limit only."""
    bench = Bench(ScriptedRunner(starts=[Accepted("r1")], cancels=[False] * 99), limit=5.0).accept()
    bench.run.order(Order.CANCEL)
    outcome = bench.wait_through()
    assert outcome.evidence == "the model's run limit has passed"
    assert bench.clock.elapsed >= 60.0


def test_a_time_out_whose_cancel_is_not_confirmed_leaves_the_slot_suspect():
    runner = ScriptedRunner(starts=[Accepted("r1")], cancels=[ServerLost()])
    assert Bench(runner).accept().wait_through().ending.suspect


def test_a_sync_run_that_timed_out_is_cancelled_too():
    runner = ScriptedRunner(starts=[RunTimedOut()])
    outcome = Bench(runner).run.step()
    assert outcome.ending.error.code == "timeout"
    assert runner.calls == ["start", "cancel None"]


def test_a_cancel_during_the_read_reaches_the_server():
    runner = ScriptedRunner(starts=[Interrupted()])
    bench = Bench(runner)
    runner.on_start = lambda abort: bench.run.order(Order.CANCEL)
    outcome = bench.run.step()
    assert outcome.ending.error.code == "cancelled"
    assert outcome.evidence == "server confirmed the cancel"


def test_a_cancel_holds_the_slot_until_the_gpu_is_proven_free():
    runner = ScriptedRunner(starts=[Accepted("r1")], cancels=[False, ServerLost(), False])
    bench = Bench(runner).accept()
    bench.run.order(Order.CANCEL)
    assert isinstance(bench.run.step(), Wait)
    assert isinstance(bench.run.step(), Wait)
    bench.evidence = "the server does not list the attempt"
    outcome = bench.run.step()
    assert outcome.ending.error.code == "cancelled"
    assert outcome.evidence == "the server does not list the attempt"


@pytest.mark.parametrize("order", [Order.CANCEL, Order.INTERRUPT])
def test_a_request_that_was_just_cut_off_may_still_reach_the_server(order):
    """It can be in the accept queue: for a second, the server's health is no proof that it does not run
    it."""
    runner = ScriptedRunner(starts=[Interrupted()], cancels=[False, False])
    bench = Bench(runner)
    runner.on_start = lambda abort: bench.run.order(order)
    bench.evidence = "the server does not run it"
    step = bench.run.step()
    if order is Order.INTERRUPT:
        assert step.ending.suspect, "the quarantine asks later"
        return
    assert isinstance(step, Wait)
    bench.clock.move(1.0)
    assert bench.run.step().evidence == "the server does not run it"


def test_a_cancel_that_is_never_proven_ends_with_the_run_limit():
    runner = ScriptedRunner(starts=[Accepted("r1")], cancels=[False] * 100)
    bench = Bench(runner).accept()
    bench.run.order(Order.CANCEL)
    outcome = bench.wait_through()
    assert outcome.evidence == "the model's run limit has passed"
    assert bench.clock.elapsed >= 60


def test_the_jobs_deadline_stops_the_run():
    bench = Bench(ScriptedRunner(starts=[Accepted("r1")]), deadline=10.0).accept()
    outcome = bench.wait_through()
    assert outcome.ending.error.code == "stopped_by_deadline"
    assert bench.clock.elapsed == 10.0


def test_no_run_is_stopped_by_its_jobs_deadline_while_the_clocks_differ():
    bench = Bench(ScriptedRunner(starts=[Accepted("r1")]), deadline=10.0).accept()
    bench.agree = False
    bench.clock.at += timedelta(hours=1)
    step = bench.run.step()
    assert isinstance(step, Wait)
    assert step.seconds > 0
    bench.clock.at -= timedelta(seconds=3595)  # it was wrong, and is right again
    bench.agree = True
    assert isinstance(bench.run.step(), Wait)
    bench.clock.move(6.0)
    assert bench.run.step().ending.error.code == "stopped_by_deadline"


def test_a_pushed_result_ends_the_run_without_another_poll():
    runner = ScriptedRunner(starts=[Accepted("r1")])
    bench = Bench(runner).accept()
    assert isinstance(bench.run.step(), Wait)
    bench.push = {"result": "pushed"}
    bench.run.nudge()
    outcome = bench.run.step()
    assert outcome.result == "pushed"
    assert runner.calls == ["start"]


def test_a_result_pushed_before_the_connection_broke_wins():
    bench = Bench(ScriptedRunner(starts=[ServerLost()]))
    bench.push = {"result": "pushed"}
    assert bench.run.step().result == "pushed"


def test_a_hand_over_waits_for_the_committed_remote_id():
    runner = ScriptedRunner(starts=[Accepted("r1")])
    bench = Bench(runner)
    bench.run.order(Order.HAND_OVER)
    assert bench.run.step() == Remote("r1")
    assert isinstance(bench.run.step(), Wait)
    bench.run.remote_committed = True
    assert bench.run.step() == HandedOver()


def test_an_adopted_run_goes_on_polling_and_never_starts():
    runner = ScriptedRunner(polls=[Finished(1)])
    assert isinstance(Bench(runner, remote_id="r9").run.step(), RunOutcome)
    assert runner.calls == ["poll r9"]


def test_a_lost_lease_stops_a_sync_run_and_leaves_a_polled_one_to_its_adopter():
    polled = Bench(ScriptedRunner(starts=[Accepted("r1")])).accept()
    polled.run.order(Order.LEASE_LOST)
    assert polled.run.step() == HandedOver()
    runner = ScriptedRunner(starts=[Interrupted()], cancels=[False])
    sync = Bench(runner)
    runner.on_start = lambda abort: sync.run.order(Order.LEASE_LOST)
    outcome = sync.run.step()
    assert outcome.ending.error.code == "lease_lost"
    assert outcome.ending.suspect


@pytest.mark.parametrize("order", [Order.START_REFUSED, Order.ENDED_ELSEWHERE])
def test_a_refused_start_and_an_end_written_elsewhere_stop_the_run(order: Order):
    runner = ScriptedRunner(starts=[Accepted("r1")])
    bench = Bench(runner)
    bench.run.step()
    bench.run.order(order)
    outcome = bench.run.step()
    assert outcome.ending.error.code == "lease_lost"
    assert runner.calls == ["start", "cancel r1"]


def test_an_interrupt_stops_the_run_at_no_cost():
    runner = ScriptedRunner(starts=[Interrupted()])
    bench = Bench(runner)
    runner.on_start = lambda abort: bench.run.order(Order.INTERRUPT)
    outcome = bench.run.step()
    assert outcome.ending.error.code == "interrupted"
    assert not outcome.ending.suspect


def test_a_process_that_died_with_the_run_is_a_death_and_leaves_a_free_slot():
    outcome = Bench(ScriptedRunner(starts=[ProcessDied("SIGSEGV")])).run.step()
    assert (outcome.ending.process_died, outcome.ending.suspect) == (True, False)


@pytest.mark.parametrize("killed", [True, False])
def test_a_run_past_its_limit_is_a_death_only_if_its_process_had_to_be_killed(killed: bool):
    late = RunTimedOut()
    late.process_died = killed
    outcome = Bench(ScriptedRunner(starts=[late], cancels=[True])).run.step()
    assert isinstance(outcome.ending.error, RunTimedOut)
    assert (outcome.ending.process_died, outcome.ending.suspect) == (killed, False)


def test_a_run_that_was_made_before_has_its_whole_time_when_it_begins() -> None:
    bench = Bench(ScriptedRunner(starts=[Accepted("r1")], cancels=[True]), limit=5.0)
    bench.clock.move(4.0)
    bench.run.start_clock()
    bench.accept()
    bench.clock.move(4.0)
    assert isinstance(bench.run.step(), Wait)
    assert bench.run.elapsed_seconds == 4.0
    bench.clock.move(1.0)
    assert isinstance(bench.run.step(), RunOutcome)
