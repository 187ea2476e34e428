"""The cost of each error: the table of docs/reference/failures.md, as decisions."""

from __future__ import annotations

import pytest

from gpus.errors import (
    BadInput,
    ConnectFailed,
    GpuBusy,
    GpuError,
    GpuFault,
    Interrupted,
    RunCancelled,
    RunFailed,
    RunTimedOut,
    ServerFailed,
    ServerLost,
    StaleFence,
    Verdict,
)
from gpus.runners.transport import ResponseTooLarge
from jobs.domain.failure_fingerprints import fingerprint_of
from jobs.domain.retry import AttemptHistory, Ending, RetryPolicy, decide_end, retry_delay_seconds, verdict_of
from jobs.domain.states import AttemptState, JobState

POLICY = RetryPolicy(max_retries=2)


def middle() -> float:
    return 0.5


def decide(
    error: GpuError | None,
    history: AttemptHistory | None = None,
    policy: RetryPolicy = POLICY,
    **ending: bool,
):
    return decide_end(Ending(error, **ending), history or AttemptHistory(), policy, chance=middle)


def test_success_completes_even_when_a_cancel_was_requested():
    assert decide(None, AttemptHistory(cancel_requested=True)).job is JobState.COMPLETED


@pytest.mark.parametrize("tries", [0, 2])
def test_busy_is_not_charged_and_never_limited(tries):
    decision = decide(GpuBusy(), AttemptHistory(tries=tries))
    assert decision.job is JobState.QUEUED
    assert decision.attempt is AttemptState.REFUSED
    assert (decision.counted, decision.tries) == (False, tries)


@pytest.mark.parametrize("error", [GpuBusy(), StaleFence(), Interrupted()], ids=str)
@pytest.mark.parametrize(
    ("attempts", "tries", "delay"), [(5, 0, 0.0), (6, 1, 0.0), (6, 0, 1.0), (7, 0, 2.0), (10_000, 2, 30.0)]
)
def test_repeated_refusals_pause_the_job_longer_each_time(
    error: GpuError, attempts: int, tries: int, delay: float
) -> None:
    policy = RetryPolicy(max_retries=2, free_attempts=5)
    decision = decide(error, AttemptHistory(tries=tries, attempts=attempts), policy)
    assert (decision.delay_seconds, decision.counted, decision.tries) == (delay, False, tries)
    assert decision.job is (JobState.RETRYING if delay else JobState.QUEUED)
    never = decide(error, AttemptHistory(tries=tries, attempts=attempts), RetryPolicy(free_attempts=0))
    assert never.job is JobState.QUEUED


def test_interrupted_is_not_charged_and_counts_no_death():
    decision = decide(Interrupted(), AttemptHistory(tries=1, deaths=2))
    assert decision.job is JobState.QUEUED
    assert (decision.tries, decision.deaths, decision.counted) == (1, 2, False)


def test_connect_errors_are_free_three_times_then_cost_a_try():
    for used in range(3):
        decision = decide(ConnectFailed(), AttemptHistory(free_connects=used))
        assert not decision.counted
        assert decision.job is JobState.RETRYING
        assert decision.elsewhere
    assert decide(ConnectFailed(), AttemptHistory(free_connects=3)).counted


def test_lost_server_costs_one_try_and_goes_elsewhere():
    decision = decide(ServerLost(), suspect=True)
    assert decision.counted
    assert decision.elsewhere
    assert decision.attempt is AttemptState.LOST
    assert decision.job is JobState.RETRYING


def test_gpu_fault_is_free_once_per_server():
    assert not decide(GpuFault()).counted
    assert decide(GpuFault(), AttemptHistory(faults_here=1)).counted


def test_bad_input_is_final_at_once():
    decision = decide(BadInput("prompt too long"))
    assert (decision.job, decision.error_code) == (JobState.FAILED, "bad_input")
    assert "prompt too long" in decision.error_message


def test_max_retries_counts_tries_after_the_first():
    assert decide(ServerFailed(), AttemptHistory(tries=1)).job is JobState.RETRYING
    final = decide(ServerFailed(), AttemptHistory(tries=2))
    assert final.job is JobState.FAILED
    assert final.error_code == "server_error"


def test_three_dead_processes_are_poison_whatever_the_budget():
    policy = RetryPolicy(max_retries=50)
    assert decide(ServerLost(), AttemptHistory(deaths=1), policy, process_died=True).job is JobState.RETRYING
    final = decide(ServerLost(), AttemptHistory(deaths=2), policy, process_died=True)
    assert (final.job, final.error_code) == (JobState.FAILED, "poison")


@pytest.mark.parametrize("error", [ServerFailed(), RunTimedOut(), Interrupted(), ServerLost()])
def test_failure_with_a_cancel_requested_ends_cancelled_never_retrying(error):
    decision = decide(error, AttemptHistory(cancel_requested=True))
    assert decision.job is JobState.CANCELLED
    assert decision.attempt is AttemptState.CANCELLED


def test_a_cancelled_run_cancels_its_job():
    assert decide(RunCancelled()).job is JobState.CANCELLED


def test_at_most_once_is_not_run_again_after_an_uncertain_end():
    policy = RetryPolicy(at_most_once=True)
    final = decide(ServerLost(), policy=policy, suspect=True)
    assert (final.job, final.error_code) == (JobState.FAILED, "lost_at_most_once")
    assert decide(ServerFailed(), policy=policy).job is JobState.RETRYING
    assert decide(GpuBusy(), policy=policy).job is JobState.QUEUED
    assert decide(Interrupted(), policy=policy, sent=False).job is JobState.QUEUED


def test_at_most_once_is_not_run_again_after_a_run_without_a_stored_response():
    assert decide(ResponseTooLarge(), policy=RetryPolicy(at_most_once=True)).error_code == "lost_at_most_once"
    assert decide(ResponseTooLarge()).job is JobState.RETRYING


def test_at_most_once_stays_uncertain_when_only_the_slot_was_proven_free():
    assert decide(ServerLost(), policy=RetryPolicy(at_most_once=True), suspect=False).job is JobState.FAILED


def test_no_retry_is_planned_after_the_deadline():
    final = decide(ServerFailed(), AttemptHistory(seconds_left=0.5))
    assert (final.job, final.error_code) == (JobState.FAILED, "deadline_exceeded")


def test_delays_double_up_to_the_cap_with_ten_percent_jitter():
    delays = [retry_delay_seconds(n, POLICY, chance=middle) for n in range(7)]
    assert delays == [1, 2, 4, 8, 16, 30, 30]
    assert retry_delay_seconds(0, POLICY, chance=lambda: 0.0) == pytest.approx(0.9)
    assert retry_delay_seconds(0, POLICY, chance=lambda: 1.0) == pytest.approx(1.1)
    assert retry_delay_seconds(10_000, POLICY, chance=middle) == 30


@pytest.mark.parametrize(("ending", "verdict"), [
    (Ending(), Verdict.WELL),
    (Ending(BadInput()), Verdict.ANSWERED),
    (Ending(BadInput(), sent=False), Verdict.NOTHING),
    (Ending(GpuBusy()), Verdict.NOTHING),
    (Ending(Interrupted()), Verdict.NOTHING),
    (Ending(ConnectFailed()), Verdict.SERVER),
])  # fmt: skip
def test_ends_count_for_the_circuit_breakers(ending: Ending, verdict: Verdict) -> None:
    assert verdict_of(ending) is verdict


# -- equal failures in a row ------------------------------------------------------------------------


def standing_after(*errors: GpuError, policy: RetryPolicy) -> AttemptHistory:
    history = AttemptHistory()
    for error in errors:
        decision = decide(error, history, policy)
        history = AttemptHistory(
            tries=decision.tries, same_failures=decision.same_failures, failure=decision.failure
        )
    return history


FIFTY = RetryPolicy(max_retries=50)


@pytest.mark.parametrize("error", [RunFailed, ServerFailed, RunTimedOut])
def test_the_same_failure_three_times_in_a_row_is_a_dead_letter(error):
    history = standing_after(error("no weights in 12 s"), error("no weights in 15 s"), policy=FIFTY)
    decision = decide(error("no weights in 9 s"), history, FIFTY)
    assert (decision.job, decision.tries) == (JobState.FAILED, 3)
    assert decision.error_code == error.code
    assert decision.error_message.startswith("no weights in 9 s (the same failure 3 times in a row")


def test_another_failure_resets_the_count_of_equal_failures():
    history = standing_after(RunFailed("a"), RunFailed("a"), RunFailed("b"), policy=FIFTY)
    decision = decide(RunFailed("a"), history, FIFTY)
    assert (decision.job, decision.same_failures) == (JobState.RETRYING, 1)


def test_uncharged_ends_do_not_change_the_count_of_equal_failures():
    history = standing_after(RunFailed("a"), GpuBusy(), RunFailed("a"), Interrupted(), policy=FIFTY)
    assert (history.same_failures, history.failure) == (2, fingerprint_of("run_failed", "a"))
    assert decide(RunFailed("a"), history, FIFTY).job is JobState.FAILED


def test_lost_servers_do_not_count_as_equal_failures():
    history = standing_after(*[ServerLost("gone")] * 10, policy=FIFTY)
    assert decide(ServerLost("gone"), history, FIFTY).job is JobState.RETRYING


def test_the_last_try_of_equal_failures_goes_to_another_server():
    """One unhealthy server must not cause a dead letter while another server works."""
    first = decide(ServerFailed("500"), AttemptHistory(), FIFTY)
    assert not first.elsewhere
    second = decide(ServerFailed("500"), standing_after(ServerFailed("500"), policy=FIFTY), FIFTY)
    assert second.elsewhere


def test_zero_disables_the_limit_of_equal_failures():
    never = RetryPolicy(max_retries=50, same_failures=0)
    history = standing_after(*[RunFailed("a")] * 9, policy=never)
    assert decide(RunFailed("a"), history, never).job is JobState.RETRYING


def test_the_error_names_the_canceller():
    client = decide(RunCancelled(), AttemptHistory(cancel_requested=True))
    operator = decide(RunCancelled(), AttemptHistory(cancel_requested=True, cancelled_by_operator=True))
    assert (client.job, client.error_code) == (JobState.CANCELLED, "cancelled")
    assert (operator.job, operator.error_code) == (JobState.CANCELLED, "cancelled_by_operator")
