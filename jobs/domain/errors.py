"""Why a job ended as it did, beyond what a GPU says (`gpus.errors`), and what services refuse."""

from __future__ import annotations

DEADLINE_EXCEEDED = "deadline_exceeded"
"""The job's deadline passed while it waited, before its first attempt or between two."""
START_DEADLINE_EXCEEDED = "start_deadline_exceeded"
"""The job never started before its start deadline."""
STOPPED_BY_DEADLINE = "stopped_by_deadline"
"""The job's deadline passed while it ran; the run was stopped."""
MAX_QUEUED_EXCEEDED = "max_queued_exceeded"
"""The job waited in the queue for longer than `max_queued_seconds` allows."""
POISON = "poison"
CANCELLED = "cancelled"
"""Cancelled by its client."""
CANCELLED_BY_OPERATOR = "cancelled_by_operator"
LOST_AT_MOST_ONCE = "lost_at_most_once"
"""The model is marked `at_most_once` and the attempt's end is unknown: running it again is not allowed."""


class Refused(Exception):
    """The request can't be carried out. Subclasses name their stable code; the message is for people."""

    code = "refused"
    status = 409
    retry_after_seconds: float | None = None
    """When the same request may succeed."""

    def __init__(
        self, message: str = "", *, pointer: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.pointer = pointer
        if retry_after_seconds is not None:
            self.retry_after_seconds = retry_after_seconds

    @property
    def passes(self) -> bool:
        """It says nothing about the request itself, which may be accepted later."""
        return self.status in (429, 503)


class UnknownModel(Refused):
    """No such model is registered."""

    code = "unknown_model"
    status = 422


class PayloadInvalid(Refused):
    """The payload does not match the model's schema."""

    code = "payload_invalid"
    status = 422


class PayloadCheckTooLong(Refused):
    """The check of the payload against the model's schema took too long."""

    code = "payload_check_too_long"
    status = 422


class PayloadCheckBusy(Refused):
    """Too many long checks of payloads are under way."""

    code = "payload_check_busy"
    status = 503
    retry_after_seconds = 1.0


class ModelSchemaUnusable(Refused):
    """The model's schema was stored by an older version, and this one can't use it."""

    code = "model_schema_unusable"
    status = 503
    retry_after_seconds = 60.0


class PayloadTooLarge(Refused):
    """The payload is larger than allowed."""

    code = "payload_too_large"
    status = 413


class IdempotencyConflict(Refused):
    """This Idempotency-Key was used with another body."""

    code = "idempotency_conflict"
    status = 422


class ModelNotAllowed(Refused):
    """This tenant, or this key, may not submit to the model."""

    code = "model_not_allowed"
    status = 403


class RunAtInPast(Refused):
    """The job was to start at a time that is over."""

    code = "run_at_in_past"
    status = 422


class RunAtTooFar(Refused):
    """The job was to start too far ahead."""

    code = "run_at_too_far"
    status = 422


class DeadlineBeforeStartDeadline(Refused):
    """The job would have to be over before it need have started."""

    code = "deadline_before_start_deadline"
    status = 422


class TooManyRetries(Refused):
    """A job can lower its model's retries, not raise them."""

    code = "max_retries_too_high"
    status = 422


class MaxRunSecondsTooLong(Refused):
    """A job can lower its model's run limit, not raise it."""

    code = "max_run_seconds_too_long"
    status = 422


class MaxRunSecondsTooShort(Refused):
    """A job's own run limit is at least `min_run_seconds` of its model."""

    code = "max_run_seconds_too_short"
    status = 422


class RateLimited(Refused):
    """The tenant submits faster than it may."""

    code = "rate_limited"
    status = 429


class BatchExceedsBurst(Refused):
    """The batch has more jobs than the tenant may ever submit at once."""

    code = "batch_exceeds_burst"
    status = 422


class QuotaExhausted(Refused):
    """The tenant's GPU-seconds of this UTC day are used up."""

    code = "quota_exhausted"
    status = 429


class ModelQueueFull(Refused):
    """As many jobs wait for the model as may."""

    code = "model_queue_full"
    status = 429


class TenantQueueFull(Refused):
    """As many jobs of the tenant wait as may."""

    code = "tenant_queue_full"
    status = 429


class TenantRunningFull(Refused):
    """The tenant runs as many jobs as it may, and the request would rather be refused than wait."""

    code = "tenant_running_full"
    status = 429


class Busy(Refused):
    """No slot is free for the model now, and the request would rather be refused than wait."""

    code = "busy"
    status = 503


class NoCapacity(Refused):
    """No healthy server runs the model now, and the request would rather be refused than wait."""

    code = "no_capacity"
    status = 503


class CapacityUnknown(Refused):
    """Nobody can say whether a slot is free, for Redis does not answer, and the request would not wait."""

    code = "leasing_unavailable"
    status = 503


class CallbackUrlRefused(Refused):
    """The callback URL points where this dispatcher must not call."""

    code = "callback_url_refused"
    status = 422


class UnknownScope(Refused):
    """There is no such scope, or a key would have none."""

    code = "unknown_scope"
    status = 422


class ScopeNeedsOperator(Refused):
    """Only an operator's key may operate."""

    code = "scope_needs_operator"
    status = 422


class ExpiresInPast(Refused):
    """The key would have expired already."""

    code = "expires_in_past"
    status = 422


class ExpiresTooFar(Refused):
    """The key would outlive everybody who knows of it: leave the time out for a key that does not expire."""

    code = "expires_too_far"
    status = 422


class KeyNotActive(Refused):
    """The key is revoked, expired or replaced already."""

    code = "key_not_active"
    status = 409


class NotCancellable(Refused):
    """The job is over; it can't be cancelled."""

    code = "not_cancellable"
    status = 409


class NotWaiting(Refused):
    """The job does not wait: it runs, or it is over."""

    code = "not_waiting"
    status = 409


class NotDeadLetter(Refused):
    """The job is not a dead letter."""

    code = "not_a_dead_letter"
    status = 409


class AttemptOver(Refused):
    """The attempt is over, and its push token with it."""

    code = "attempt_over"


class TooManyPushes(Refused):
    """A GPU server pushed too often, or too much, for one attempt."""

    code = "too_many_pushes"
    status = 429
