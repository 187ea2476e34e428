"""Decides what happens to a job when an attempt ends: retry, pause, failure or success. Pure.

Attempt: one start of the job on a slot, charged or not. Try: an attempt that is charged. Retry: a try after
the first. Round: the attempts since the job was submitted, or since an operator retried it.
The table of errors and their costs is in docs/reference/failures.md ("What an error costs").
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gpus.errors import GpuError, Verdict
from jobs.domain.errors import CANCELLED, CANCELLED_BY_OPERATOR, DEADLINE_EXCEEDED, LOST_AT_MOST_ONCE, POISON
from jobs.domain.failure_fingerprints import fingerprint_of
from jobs.domain.states import AttemptState, JobState

_PAUSES_AT_NO_COST = ("connect", "does_not_fit")
"""Uncharged errors with a pause all the same: without one, the same server could get the job again at
once."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits and backoff of a job's retries.

    max_retries: charged tries after the first. base_seconds, cap_seconds, jitter: backoff base · 2ⁿ up to
    cap, ± jitter (a share). free_connects: connection errors that are not charged. poison_deaths: deaths of
    the worker process that end the job. same_failures: equal failures in a row that end the job; 0: no limit.
    free_attempts: uncharged attempts before further ones get a pause; 0: no limit. at_most_once: the job must
    not run again after an uncertain end.
    """

    max_retries: int = 50
    base_seconds: float = 1.0
    cap_seconds: float = 30.0
    jitter: float = 0.1
    free_connects: int = 3
    poison_deaths: int = 3
    same_failures: int = 3
    free_attempts: int = 100
    at_most_once: bool = False


class AttemptHistory(NamedTuple):
    """What the job has used up in this round before the ended attempt.

    tries: charged attempts. free_connects: connection errors. deaths: deaths of the worker process.
    seconds_left: until the job's deadline; None without one. faults_here: earlier GPU faults on the same
    server. same_failures: equal charged failures in a row. failure: their fingerprint. attempts: all attempts
    of the job, including this one and uncharged ones.
    """

    tries: int = 0
    free_connects: int = 0
    deaths: int = 0
    cancel_requested: bool = False
    cancelled_by_operator: bool = False
    seconds_left: float | None = None
    faults_here: int = 0
    same_failures: int = 0
    failure: str = ""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: with a result (error is None) or with an error.

    suspect: the GPU may still run it. process_died: the worker that ran it died, which counts towards
    `poison`. sent: the request was sent to a GPU server. unreachable: why no worker can poll the run any more
    (its server or placement was removed); a cancel then does not wait for a proof. Empty: it can be polled.
    """

    error: GpuError | None = None
    suspect: bool = False
    process_died: bool = False
    sent: bool = True
    unreachable: str = ""

    @property
    def uncertain(self) -> bool:
        """True if it is unknown whether the run took place, even if its slot is proven free by now."""
        if not self.sent or self.error is None:
            return self.sent and self.process_died
        return self.process_died or self.error.suspect or self.error.unfinished


class Decision(NamedTuple):
    """New states of job and attempt, and the updated counts of the round.

    counted: the attempt is charged as a try. delay_seconds: pause until the job is queued again. elsewhere:
    the next attempt avoids this server. same_failures, failure: as in `AttemptHistory`, including this
    attempt.
    """

    job: JobState
    attempt: AttemptState
    counted: bool = False
    tries: int = 0
    free_connects: int = 0
    deaths: int = 0
    delay_seconds: float = 0.0
    elsewhere: bool = False
    same_failures: int = 0
    failure: str = ""
    error_code: str = ""
    error_message: str = ""


def decide_end(
    ending: Ending,
    history: AttemptHistory,
    policy: RetryPolicy,
    *,
    chance: Callable[[], float] = random.random,
) -> Decision:
    """Decide the job's next state when an attempt ends. A success wins even over a requested cancel.

    chance: returns a random number in 0..1 for the jitter.
    """
    error = ending.error
    if error is None:
        return Decision(
            JobState.COMPLETED,
            AttemptState.COMPLETED,
            tries=history.tries,
            free_connects=history.free_connects,
            deaths=history.deaths,
        )
    deaths = history.deaths + ending.process_died
    free_connects = history.free_connects
    counted = error.counts
    if error.code == "connect":
        free_connects += 1
        counted = free_connects > policy.free_connects
    if error.code == "gpu_fault":
        counted = history.faults_here > 0
    tries = history.tries + counted
    same_failures, failure = _same_failures(error, history, counted=counted)

    def end(
        job: JobState, *, code: str = error.code, message: str = error.message, delay: float = 0.0
    ) -> Decision:
        return Decision(
            job,
            _attempt_state(error, cancelled=job is JobState.CANCELLED),
            counted=counted,
            tries=tries,
            free_connects=free_connects,
            deaths=deaths,
            delay_seconds=delay,
            # the last try before equal failures end the job goes to another server, if there is one
            elsewhere=error.elsewhere or (counted and same_failures == policy.same_failures - 1 > 0),
            same_failures=same_failures,
            failure=failure,
            error_code=code,
            error_message=message,
        )

    if history.cancel_requested and ending.suspect and not ending.unreachable:
        return end(JobState.CANCELLING, code="", message="")  # CANCELLED promises a free GPU
    if history.cancel_requested or error.code == CANCELLED:
        by_operator = history.cancelled_by_operator
        return end(
            JobState.CANCELLED,
            code=CANCELLED_BY_OPERATOR if by_operator else CANCELLED,
            message=cancel_message(by_operator=by_operator),
        )
    if not error.retryable:
        return end(JobState.FAILED)
    if deaths >= policy.poison_deaths:
        return end(
            JobState.FAILED,
            code=POISON,
            message=f"The worker's process died {deaths} times while running the job; last: {error.message}",
        )
    if policy.at_most_once and ending.uncertain:
        return end(
            JobState.FAILED,
            code=LOST_AT_MOST_ONCE,
            message=f"The model allows one run only, and the end of this run is unknown: {error.message}",
        )
    if 0 < policy.same_failures <= same_failures:
        return end(
            JobState.FAILED,
            message=f"{error.message} (the same failure {same_failures} times in a row, so no further retry)",
        )
    if tries > policy.max_retries:
        return end(JobState.FAILED, message=f"{error.message} (all {policy.max_retries} retries used)")
    delay = 0.0
    if counted or error.code in _PAUSES_AT_NO_COST:
        delay = retry_delay_seconds(max(tries, free_connects, 1) - 1, policy, chance=chance)
    elif 0 < policy.free_attempts < history.attempts - tries:
        beyond = history.attempts - tries - policy.free_attempts
        delay = retry_delay_seconds(beyond - 1, policy, chance=chance)
    if history.seconds_left is not None and history.seconds_left <= delay:
        return end(
            JobState.FAILED, code=DEADLINE_EXCEEDED, message=f"No time left for a retry: {error.message}"
        )
    return end(JobState.RETRYING if delay > 0 else JobState.QUEUED, delay=delay)


def cancel_message(*, by_operator: bool) -> str:
    return "Cancelled by an operator." if by_operator else "Cancelled on request."


def _same_failures(error: GpuError, history: AttemptHistory, *, counted: bool) -> tuple[int, str]:
    """Return the number of equal failures in a row, including this one, and their fingerprint. Uncharged ends
    (busy, interrupted) neither count nor interrupt the row."""
    if not counted:
        return history.same_failures, history.failure
    if not error.repeats:
        return 0, ""
    failure = fingerprint_of(error.code, error.message)
    return (history.same_failures + 1 if failure == history.failure else 1), failure


def verdict_of(ending: Ending) -> Verdict:
    """Return how this end counts for the circuit breakers of its server and model."""
    if not ending.sent:
        return Verdict.NOTHING
    return Verdict.WELL if ending.error is None else ending.error.blames


def retry_delay_seconds(
    retry: int, policy: RetryPolicy, *, chance: Callable[[], float] = random.random
) -> float:
    """Return the exponential backoff in seconds; with the defaults 1 s · 2ⁿ, at most 30 s, ± 10 %. retry: 0
    for the first one."""
    delay = min(policy.base_seconds * 2.0 ** min(retry, 60), policy.cap_seconds)
    return delay * (1.0 + policy.jitter * (2.0 * chance() - 1.0))


def _attempt_state(error: GpuError, *, cancelled: bool) -> AttemptState:
    if cancelled:
        return AttemptState.CANCELLED
    if error.code in ("busy", "connect", "credentials_refused"):
        return AttemptState.REFUSED
    if error.code in ("server_lost", "interrupted", "lease_lost"):
        return AttemptState.LOST
    return AttemptState.FAILED
