"""The state machine of one attempt: send, poll, cancel, time-outs. Its caller waits between the steps.

A step returns a `Step`. An `Order` from another thread (cancel, hand over, lease lost …) is a flag that ends
a blocked read at once. The caller is `jobs.execution.slot_loop`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from artifacts.outputs import Secured
from foundation.long_texts import LongTexts
from gpus.errors import (
    ConnectFailed,
    GpuBusy,
    GpuError,
    Interrupted,
    LeaseLost,
    OutputNotStored,
    RunCancelled,
    RunTimedOut,
    ServerFailed,
    ServerLost,
    Verdict,
)
from gpus.health.evidence import is_settled
from gpus.protocol import Clock, ModelSpec, Progress
from gpus.runners.base import (
    Abort,
    Accepted,
    CancelUnsupported,
    Finished,
    PollFailed,
    Runner,
    RunRequest,
    SaveOutput,
)
from gpus.runners.registry import is_polled
from gpus.runners.transport import Unreadable
from jobs.domain.errors import STOPPED_BY_DEADLINE
from jobs.domain.retry import Ending
from jobs.execution.output_errors import OutputsUnavailable
from jobs.execution.progress_events import ProgressEvents
from jobs.execution.run_outputs import KeptResult

log = structlog.get_logger()

REPORTED = "the server reported its end"
"""Evidence that a run is over; stored with its attempt, as all evidence is."""
ANSWERED = "the server answered its request"
STOP_AGAIN_SECONDS = 2.0
"""Between two requests to the server to stop a run."""
POLL_BACKOFF_CAP_SECONDS = 30.0
KEEP_AGAIN_SECONDS, KEEP_CAP_SECONDS = 0.5, 5.0
"""Between two tries to store the outputs of a run: the first pause, and the longest."""
_SUCCESS = Ending()


class DeadlineExceeded(GpuError):
    """The job's deadline passed while it ran."""

    code = STOPPED_BY_DEADLINE
    counts = False
    retryable = False


class Order(StrEnum):
    """An order from another thread that ends a run. If several are set, the first one listed here wins."""

    LEASE_LOST = "lease_lost"
    """Another worker holds the lease."""
    START_REFUSED = "start_refused"
    """The database refused the start: the run must not count."""
    ENDED_ELSEWHERE = "ended_elsewhere"
    """Another process ended the attempt as lost: the database would refuse its result."""
    CANCEL = "cancel"
    """A client or an operator cancelled the job."""
    INTERRUPT = "interrupt"
    """The grace period of a deploy is over, or the operator switched the server off."""
    HAND_OVER = "hand_over"
    """The worker is draining: another worker polls the run on."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Call `step` again after this long, or at once when woken."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Remote:
    """The server accepted the run and returned its id: commit the id, and call `step` again."""

    remote_id: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The run goes on at its server under a committed remote id; the next worker polls it."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The attempt's end, as its run returns it.

    evidence: proof that the slot is free; empty if there is none. usage: as of `Finished`.
    refused_url: the server's URL that refused connections after the connection had broken; empty if none did.
    outputs: of a success: those that become artifacts; None: none.
    """

    ending: Ending
    result: Any = None
    evidence: str = ""
    usage: Mapping[str, Any] | None = None
    refused_url: str = ""
    outputs: Secured | None = None


_LOST = frozenset({Order.LEASE_LOST, Order.START_REFUSED, Order.ENDED_ELSEWHERE})
Step = Wait | Remote | HandedOver | RunOutcome


class RunSoFar(NamedTuple):
    """How far another worker drove an adopted run.

    remote_id: the server's id of the run; None: it was not sent. ran_seconds: how long it ran.
    logs_seen: position in its server's log, as in `RunRequest`.
    """

    remote_id: str | None = None
    ran_seconds: float = 0.0
    logs_seen: int = 0


NOT_SENT = RunSoFar()


class Keep(Protocol):
    """Keeps the outputs of a run that has succeeded: `jobs.execution.run_outputs.RunOutputs.keep`."""

    def __call__(
        self,
        result: Any,
        finish: Callable[[SaveOutput], Any] | None,
        *,
        is_last_try: bool,
        long_texts: LongTexts | None,
    ) -> KeptResult: ...


class RunData(NamedTuple):
    """What a run sends and keeps.

    to_send: returns the request with the payload that the server gets; may raise GpuError. None: as it is.
    keep: keeps the outputs of a success. After OutputsUnavailable it is called again for `keep_seconds`; the
    lease is held meanwhile. None: the result is stored as it is.
    abort: ends the reads of the run, and those of `keep`; None: the run makes its own.
    """

    to_send: Callable[[RunRequest], RunRequest] | None = None
    keep: Keep | None = None
    keep_seconds: float = 0.0
    abort: Abort | None = None


PLAIN_DATA = RunData()


class RunServices(Protocol):
    """What a run asks of the worker that drives it. Its callers are several threads."""

    @property
    def clock(self) -> Clock: ...

    @property
    def in_background(self) -> Callable[[Callable[[], None]], None] | None:
        """Calls a function in a thread of its own; None: no cancel while an answer is read."""

    def new_event(self) -> threading.Event:
        """Return the event that wakes the waiting run."""
        ...

    def is_fresh(self) -> bool:
        """Return True if the lease was renewed lately enough to send under it."""
        ...

    def clocks_agree(self) -> bool:
        """Return the last comparison of clocks; while they differ, no deadline stops a run."""
        ...

    def pushed(self) -> Mapping[str, Any] | None:
        """Return the body that the server pushed for this attempt, or None."""
        ...

    def prove_free(self) -> str | None:
        """Read the server's health; return evidence that the run is over, or None."""
        ...

    def refused_url(self) -> str:
        """Return the server's URL that refuses connections, or an empty text."""
        ...


class AttemptRun:
    """The state machine of one attempt.

    deadline: the job's; None: no deadline.
    progress_events: the buffer of the run's progress; None: its progress is not written.
    """

    def __init__(
        self,
        request: RunRequest,
        runner: Runner,
        services: RunServices,
        *,
        deadline: datetime | None = None,
        so_far: RunSoFar = NOT_SENT,
        data: RunData = PLAIN_DATA,
        progress_events: ProgressEvents | None = None,
    ) -> None:
        self.request = request
        self.progress_events = progress_events
        self.remote_id = so_far.remote_id
        self.remote_committed = self.remote_id is not None
        self.runner, self._services, self._clock = runner, services, services.clock
        self.began = self._clock.monotonic()
        self.woken = services.new_event()
        longest = model_seconds(request.model)
        limit = min(longest, request.limit_seconds)
        self._limit_at = self.began + max(0.0, limit - so_far.ran_seconds)
        self._limit_is_the_jobs = request.limit_seconds < longest
        # polling ends with `max_poll_time`; only the run limit proves that the run is over
        self._over_at = self._limit_at + max(0.0, request.model.run_limit_seconds - limit)
        self._deadline, self._data = deadline, data
        self._success: RunOutcome | None = None
        """The run has succeeded, and its outputs are not kept yet."""
        self._finish: Callable[[SaveOutput], Any] | None = None
        self._long_texts: LongTexts | None = None
        self._keep_until = self._keep_pause = 0.0
        self._orders: set[Order] = set()
        self._abort = data.abort or Abort()
        # no reference to this run: a cycle would wait for the garbage collector
        self._background_cancel = BackgroundCancel(
            self._clock, self._abort, services.in_background if runner.answer_ends_run else None
        )
        self._can_ask_to_stop = True
        self._started = self.remote_committed
        self._abandoned_at = -math.inf  # monotonic: when a request ended without an answer
        self._look_for_push = self.remote_committed
        self._poll_failures = 0
        self._next_poll_at = self.began

    def start_clock(self) -> None:
        """Start the run's clock; the job's deadline does not move."""
        now = self._clock.monotonic()
        later = now - self.began
        self.began = self._next_poll_at = now
        self._limit_at += later
        self._over_at += later

    # -- from any thread -----------------------------------------------------------------------------

    def order(self, order: Order) -> None:
        """Set an order, and end the current read unless it may go on: HAND_OVER waits for a remote id, and a
        CANCEL may be requested in the background."""
        self._orders.add(order)
        # the next worker reads the result of a polled run again, with its files
        keeps_reading = order is Order.HAND_OVER and not (self._success and self.remote_committed)
        if order is Order.CANCEL:
            keeps_reading = self._try_cancel_in_background()
        if not keeps_reading:
            self._abort.fire()
        self.woken.set()

    def nudge(self) -> None:
        """Wake the run, because a result was pushed."""
        self._look_for_push = True
        self.woken.set()

    def remote_id_committed(self) -> None:
        """The remote id is durable: the run may be handed over now."""
        self.remote_committed = True
        self.woken.set()

    @property
    def was_lost(self) -> bool:
        """True if another worker holds the lease."""
        return Order.LEASE_LOST in self._orders

    def check_time(self) -> None:
        """Stop the run if its job's deadline has passed, and write its buffered progress; the watcher calls
        it every second. Past the job's own limit, the server is only asked in the background to stop."""
        if self.progress_events is not None:
            self.progress_events.write_if_due()
        # a read without a background cancel has the run's limit itself, counted from when the model is loaded
        reason = self._out_of_time()
        if reason is None:
            return
        is_cancelling = self._try_cancel_in_background()
        if isinstance(reason, DeadlineExceeded) and not is_cancelling:
            self._abort.fire()
            self.woken.set()

    @property
    def elapsed_seconds(self) -> float:
        """How long this process has driven the run."""
        return self._clock.monotonic() - self.began

    # -- from the thread of the slot -------------------------------------------------------------------

    def step(self) -> Step:
        """Apply orders, else send the request or poll the run. Never raises."""
        try:
            if self._success is not None:
                return self._keep_outputs(self._success, self._clock.monotonic())
            return self._apply_orders() or (self._poll() if self._started else self._start())
        except GpuError as error:
            return self._fail(error)
        except Exception as error:
            log.exception("run_crashed", job_id=self.request.job_id, attempt=self.request.attempt_id)
            return RunOutcome(
                Ending(ServerFailed(f"The dispatcher's runner broke: {error}"), suspect=self._started)
            )

    def _succeeded(self, finished: Finished, evidence: str = "") -> Step:
        """Keep the outputs of the run, and end it."""
        success = RunOutcome(_SUCCESS, finished.result, evidence, finished.usage)
        if self._data.keep is None:
            return success
        self._success, self._finish, self._long_texts = success, finished.finish, finished.long_texts
        now = self._clock.monotonic()
        self._keep_until, self._keep_pause = now + self._data.keep_seconds, KEEP_AGAIN_SECONDS
        return self._keep_outputs(success, now)

    def _keep_outputs(self, success: RunOutcome, now: float) -> Step:
        """Keep the outputs of a run that has succeeded; wait while the store does not answer. The server's
        answer is there, so every end frees the slot. now: monotonic seconds."""
        assert self._data.keep is not None
        is_last_try = now >= self._keep_until
        try:
            kept = self._data.keep(
                success.result, self._finish, is_last_try=is_last_try, long_texts=self._long_texts
            )
        except OutputsUnavailable as error:
            log.warning("outputs_not_kept", job_id=self.request.job_id, error=error.message)
            stopped = self._reason_to_drop_outputs(error, was_last_try=is_last_try)
            if isinstance(stopped, HandedOver):
                return stopped
            if stopped is not None:
                return RunOutcome(Ending(stopped), evidence=success.evidence or ANSWERED)
            pause, self._keep_pause = self._keep_pause, min(2 * self._keep_pause, KEEP_CAP_SECONDS)
            return Wait(pause)
        except GpuError as error:
            return RunOutcome(Ending(error), evidence=success.evidence or ANSWERED)
        except Exception:
            log.exception("outputs_not_kept", job_id=self.request.job_id, attempt=self.request.attempt_id)
            broken = OutputNotStored("The dispatcher failed to store the outputs of the run.")
            return RunOutcome(Ending(broken), evidence=success.evidence or ANSWERED)
        return RunOutcome(success.ending, kept.result, success.evidence, success.usage, outputs=kept.outputs)

    def _reason_to_drop_outputs(
        self, error: OutputsUnavailable, *, was_last_try: bool
    ) -> GpuError | HandedOver | None:
        """Return why a run whose outputs can't be stored now is not waited for any longer; None: it is."""
        orders = self._orders
        if orders & _LOST:
            return HandedOver() if self._may_hand_over(Order.LEASE_LOST) else LeaseLost()
        if Order.CANCEL in orders:
            return RunCancelled()
        if self._is_past_deadline():
            return DeadlineExceeded()
        if self._may_hand_over(Order.HAND_OVER):
            return HandedOver()  # its next worker polls the result again
        if Order.INTERRUPT in orders:
            return Interrupted()
        # time may have run out during the try: a last one keeps a long result in its row
        return error if error.is_bounded and was_last_try else None

    def _may_hand_over(self, order: Order) -> bool:
        return order in self._orders and self.remote_committed

    def _apply_orders(self) -> Step | None:
        orders = self._orders
        if Order.LEASE_LOST in orders:
            if self.remote_committed:
                return HandedOver()  # the worker that holds the lease now adopts the run
            return self._stop(LeaseLost())
        if Order.START_REFUSED in orders:
            return self._stop(LeaseLost("The start was not accepted."))
        if Order.ENDED_ELSEWHERE in orders:
            return self._stop(LeaseLost("The attempt was ended elsewhere."))
        reason = self._reason_to_stop()
        if reason is not None:
            return self._stop(reason, until_proven=True)
        if self._is_past_limit():
            return self._stop(self._timed_out())
        if Order.HAND_OVER in orders and self.remote_committed:
            return HandedOver()
        if Order.INTERRUPT in orders:
            return self._stop(Interrupted())
        return None

    def _start(self) -> Step:
        request = self.request
        if self._data.to_send is not None:
            try:
                request = self._data.to_send(request)
            except GpuError as error:
                return RunOutcome(Ending(error, sent=False))
        if not self._services.is_fresh():
            return RunOutcome(Ending(LeaseLost("The lease was too old to send under."), sent=False))
        self._started = True
        self._background_cancel.set_reading(on=True)
        try:
            outcome = self.runner.start(request, abort=self._abort)
        except Exception:
            self._abandoned_at = self._clock.monotonic()
            raise
        finally:
            self._background_cancel.set_reading(on=False)
        if isinstance(outcome, Finished):
            stopped = self._reason_to_stop() if self._background_cancel.was_requested else None
            if stopped is not None:
                return RunOutcome(Ending(stopped), evidence=ANSWERED)
            return self._succeeded(outcome)
        return self._accepted(outcome)

    def _accepted(self, accepted: Accepted) -> Step:
        self.remote_id = accepted.remote_id
        self._look_for_push = True
        self._next_poll_at = self._clock.monotonic() + self.request.model.poll_interval
        return Remote(accepted.remote_id)

    def _poll(self) -> Step:
        finished = self._read_pushed()
        if finished is not None:
            return finished
        if self.remote_id is None:  # the reason that interrupted the start no longer holds
            raise ServerLost("The connection ended before the server answered.")
        wait = self._next_poll_at - self._clock.monotonic()
        if wait > 0:
            return self._wait(wait)
        try:
            outcome = self.runner.poll(self.request, self.remote_id, abort=self._abort)
        except PollFailed as failure:
            if failure.gone:
                raise ServerLost(f"The server does not know the run any more: {failure}") from failure
            self._poll_failures += 1
            backoff = self.request.model.poll_interval * 2.0 ** min(self._poll_failures, 10)
            return self._poll_after(
                min(backoff, max(POLL_BACKOFF_CAP_SECONDS, self.request.model.poll_interval))
            )
        self._poll_failures = 0
        if isinstance(outcome, Finished):
            return self._succeeded(outcome)
        if outcome.progress is not None:
            self.request.report("progress", Progress(outcome.progress, outcome.text).as_json())
        return self._poll_after(self.request.model.poll_interval)

    def _poll_after(self, seconds: float) -> Step:
        self._next_poll_at = self._clock.monotonic() + seconds
        return self._wait(seconds)

    def _wait(self, seconds: float) -> Wait:
        """Wait for this time, but not past the limit or the deadline."""
        ends = [self._limit_at - self._clock.monotonic()]
        if self._deadline is not None and (left := self._seconds_left(self._deadline)) > 0:
            ends.append(left)
        return Wait(max(0.0, min(seconds, *ends)))

    def _read_pushed(self) -> Step | None:
        if not self._look_for_push:
            return None
        try:
            body = self._services.pushed()
        except Exception as error:  # the database is away; the push is durable, and the next step reads it
            log.warning("push_not_read", job_id=self.request.job_id, error=str(error).strip())
            return None
        self._look_for_push = False
        if body is None:
            return None
        try:
            outcome = self.runner.read_pushed(self.request, body)
        except Unreadable as error:  # no result in it: polling goes on
            log.warning("push_unreadable", job_id=self.request.job_id, error=error.message)
            return None
        if not isinstance(outcome, Finished):
            return None
        return self._succeeded(outcome, "result pushed")

    def _fail(self, error: GpuError) -> Step:
        if isinstance(error, Interrupted) and (self._orders or self._out_of_time() is not None):
            obeyed = self._apply_orders()
            if obeyed is not None:
                return obeyed
        if error.suspect:
            self._look_for_push = True
            pushed = self._read_pushed_quietly()
            if pushed is not None:
                return pushed
        stopped = self._reason_to_stop() if self._background_cancel.was_requested else None
        if stopped is not None:
            if isinstance(error, RunTimedOut):
                return self._stop(stopped, until_proven=True)
            if not (error.suspect or isinstance(error, (GpuBusy, ConnectFailed))):
                return RunOutcome(Ending(stopped, process_died=error.process_died), evidence=ANSWERED)
            if isinstance(error, ServerLost):
                error.blames = Verdict.NOTHING  # a server may hang up after a stop request
        if isinstance(error, RunTimedOut):
            if self._limit_is_the_jobs and self._is_past_limit():
                error.blames = Verdict.NOTHING
                return self._stop(error, until_proven=True)
            return self._stop(error)
        is_lost = error.suspect and isinstance(error, ServerLost)
        refused_url = self._refused_url_safely() if is_lost else ""
        ending = Ending(error, suspect=error.suspect, process_died=error.process_died)
        return RunOutcome(ending, refused_url=refused_url)

    def _read_pushed_quietly(self) -> Step | None:
        try:
            return self._read_pushed()
        except GpuError as error:
            return RunOutcome(Ending(error, suspect=error.suspect), evidence="failure pushed")

    def _stop(self, error: GpuError, *, until_proven: bool = False) -> Step:
        """Ask the server to stop the run, and end it; a result that was pushed before wins.

        until_proven: wait up to the run limit for evidence that the slot is free. The job asked for the stop,
        so its tenant pays for the busy slot."""
        if not self._started:
            return RunOutcome(Ending(error, sent=False), evidence="never sent")
        if not isinstance(error, LeaseLost):
            self._look_for_push = True
            pushed = self._read_pushed_quietly()
            if pushed is not None:
                return pushed
        if self._background_cancel.is_confirmed or self._ask_to_stop():
            ending = Ending(error, process_died=error.process_died)
            return RunOutcome(ending, evidence=self.runner.stopped_by)
        evidence = self._evidence()
        if evidence:
            return RunOutcome(Ending(error), evidence=evidence)
        if not until_proven or Order.INTERRUPT in self._orders:
            return RunOutcome(Ending(error, suspect=True))
        if self._clock.monotonic() >= self._over_at:
            return RunOutcome(Ending(error), evidence="the model's run limit has passed")
        if self._is_polled_over():
            return RunOutcome(Ending(error), evidence=REPORTED)
        return Wait(STOP_AGAIN_SECONDS)

    def _is_polled_over(self) -> bool:
        """Return True if the server reports that a run which it could not stop has ended."""
        if self.remote_id is None:
            return False
        try:
            return isinstance(self.runner.poll(self.request, self.remote_id, abort=Abort()), Finished)
        except PollFailed:
            return False
        except GpuError as error:
            return not error.suspect

    def _ask_to_stop(self) -> bool:
        if not self._can_ask_to_stop:
            return False
        try:
            return self.runner.cancel(self.request, self.remote_id)
        except CancelUnsupported as error:
            self._can_ask_to_stop = False
            log.info("cancel_unsupported", job_id=self.request.job_id, error=str(error))
            return False
        except GpuError as error:
            log.info("cancel_not_confirmed", job_id=self.request.job_id, error=error.message)
            return False

    def _try_cancel_in_background(self) -> bool:
        """Return False if no answer is being read: the caller has to stop the run."""
        return self._background_cancel.request(self._ask_to_stop, self._is_proven_in_background)

    def _is_proven_in_background(self) -> bool:
        return is_settled(self._clock.monotonic() - self.began) and self._prove_free_safely() is not None

    def _evidence(self) -> str | None:
        if not is_settled(self._clock.monotonic() - self._abandoned_at):
            return None
        return self._prove_free_safely()

    def _prove_free_safely(self) -> str | None:
        try:
            return self._services.prove_free()
        except Exception as error:  # without the database there is no address to ask
            log.warning("slot_not_proven", job_id=self.request.job_id, error=str(error).strip())
            return None

    def _refused_url_safely(self) -> str:
        try:
            return self._services.refused_url()
        except Exception as error:  # the quarantine's sweep asks later
            log.warning("refused_url_probe_failed", job_id=self.request.job_id, error=str(error).strip())
            return ""

    def _reason_to_stop(self) -> GpuError | None:
        """Return the cancel, deadline or limit of the job that ends the run, or None. Neither server nor
        model is to blame for it."""
        return RunCancelled() if Order.CANCEL in self._orders else self._out_of_time()

    def _out_of_time(self) -> GpuError | None:
        """Return an error if the job's deadline has passed, or its own limit, shorter than the model's."""
        if self._is_past_deadline():
            return DeadlineExceeded()
        return self._timed_out() if self._limit_is_the_jobs and self._is_past_limit() else None

    def _timed_out(self) -> RunTimedOut:
        error = RunTimedOut(f"The run took longer than {self._limit_at - self.began:.0f} s.")
        if self._limit_is_the_jobs:
            error.blames = Verdict.NOTHING
        return error

    def _is_past_limit(self) -> bool:
        return self._clock.monotonic() >= self._limit_at

    def _is_past_deadline(self) -> bool:
        return (
            self._deadline is not None
            and self._seconds_left(self._deadline) <= 0
            and self._services.clocks_agree()
        )

    def _seconds_left(self, deadline: datetime) -> float:
        return (deadline - self._clock.now()).total_seconds()


def model_seconds(model: ModelSpec) -> float:
    """Return the longest run of the model: its run limit, and for polled models at most `max_poll_time`."""
    limit = model.run_limit_seconds
    return min(limit, model.max_poll_time) if is_polled(model) else limit


class BackgroundCancel:
    """Requests a cancel while the run's answer is still being read. That answer proves the run over, and is
    the only proof that a server without a cancel endpoint gives.

    abort: ends the read of the answer.
    in_background: calls a function in a thread of its own; None: no cancel in the background.
    """

    def __init__(
        self,
        clock: Clock,
        abort: Abort,
        in_background: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self.was_requested = False
        self.is_confirmed = False
        self._clock, self._abort, self._in_background = clock, abort, in_background
        self._lock = threading.Lock()
        self._is_reading = self._is_requesting = False
        self._again_at = -math.inf

    def set_reading(self, *, on: bool) -> None:
        """Note that the read of the run's answer begins or ends."""
        with self._lock:
            self._is_reading = on and self._in_background is not None

    def request(self, ask_to_stop: Callable[[], bool], is_proven: Callable[[], bool]) -> bool:
        """Request the cancel in the background, at most every two seconds. Thread-safe; never waits.

        ask_to_stop: requests the cancel; returns True if the server confirms it.
        is_proven: returns True if the server's health proves that it does not run the attempt.
        Returns False if no answer is being read: the caller has to stop the run.
        """
        with self._lock:
            if not self._is_reading or self._in_background is None:
                return False
            if self._is_requesting or self._clock.monotonic() < self._again_at:
                return True
            self.was_requested = self._is_requesting = True
        try:
            self._in_background(partial(self._work, ask_to_stop, is_proven))
        except RuntimeError as error:  # no thread can be started
            log.warning("background_cancel_not_started", error=str(error))
            self._is_requesting = False
            return False
        return True

    def _work(self, ask_to_stop: Callable[[], bool], is_proven: Callable[[], bool]) -> None:
        """End the read if the server confirms the cancel, or does not run the attempt any more."""
        try:
            self.is_confirmed = ask_to_stop()
            if self.is_confirmed or is_proven():
                self._abort.fire()
        finally:
            self._again_at = self._clock.monotonic() + STOP_AGAIN_SECONDS
            self._is_requesting = False
