"""Error codes of jobs besides those of GPUs (`gpus.errors`), and the errors with which requests are refused.

The docstring of a `Refused` subclass is its default message for clients: one or two sentences with what to
do.
"""

from __future__ import annotations

from gpus.errors import ERRORS_BY_CODE

CLIENT_ERRORS = frozenset(code for code, error in ERRORS_BY_CODE.items() if error.of_client)
"""Codes of failures that the client's input caused: only another input helps."""
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
"""The model is `at_most_once` and the attempt's end is unknown, so the job must not run again."""


class Refused(Exception):
    """The request can't be carried out. Subclasses have a stable code; the message is for people."""

    code = "refused"
    status = 409
    retry_after_seconds: float | None = None
    """Time after which the same request may succeed."""

    def __init__(
        self, message: str = "", *, pointer: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.pointer = pointer
        if retry_after_seconds is not None:
            self.retry_after_seconds = retry_after_seconds

    @property
    def passes(self) -> bool:
        """True if the error is temporary: the same request may succeed later."""
        return self.status in (429, 503)


class UnknownModel(Refused):
    """No model of this name is registered."""

    code = "unknown_model"
    status = 422

    @classmethod
    def named(cls, name: str) -> UnknownModel:
        """Return the refusal of a submit to this model."""
        text = f"No model {name!r} is registered. `GET /api/v1/me` lists the models that you may use."
        return cls(text, pointer="/model")


class PayloadInvalid(Refused):
    """The payload does not match the model's schema."""

    code = "payload_invalid"
    status = 422


class ArtifactMissing(Refused):
    """The payload refers to an artifact that the tenant does not have."""

    code = "artifact_missing"
    status = 422


class ArtifactRefInvalid(Refused):
    """The payload has a reference to an artifact that is malformed."""

    code = "artifact_ref_invalid"
    status = 422


class TooManyArtifacts(Refused):
    """The payload refers to more artifacts than are allowed."""

    code = "too_many_artifacts"
    status = 422


class ArtifactStoreUnavailable(Refused):
    """The store of artifacts does not answer, so it is unknown whether an upload is complete."""

    code = "artifact_store_unavailable"
    status = 503


class ArtifactStoreOfOneHost(Refused):
    """Artifacts are in a folder of one host, and processes on several hosts use it."""

    code = "artifact_store_of_one_host"
    status = 503

    def __init__(self, hosts: int, *, pointer: str | None = None) -> None:
        super().__init__(
            f"Artifacts are in a folder of one host, and processes on {hosts} hosts use it. An operator has "
            "to set DISPATCHER_ARTIFACT_STORE to s3://BUCKET, or to a folder that all hosts share "
            "(?shared=1).",
            pointer=pointer,
        )


class TooManyRunArtifacts(Refused):
    """The run has saved as many artifacts, or bytes, as it may."""

    code = "too_many_run_artifacts"
    status = 429


class FileInvalid(Refused):
    """The text at a place for a file is not a file."""

    code = "file_invalid"
    status = 422


class FileNotFetched(Refused):
    """The file of a URL could not be read."""

    code = "file_not_fetched"
    status = 422


class FileTypeWrong(Refused):
    """The file is of another type than the model's schema declares for its place."""

    code = "file_type_wrong"
    status = 422


class FileNotSent(Refused):
    """The payload refers to a file that the form does not have."""

    code = "file_not_sent"
    status = 422


class FileUnused(Refused):
    """The form has a file that the payload does not refer to."""

    code = "file_unused"
    status = 422


class FileRefused(Refused):
    """The file can't become an artifact: a limit of the tenant's artifacts is reached."""

    code = "artifact_quota_full"
    status = 429

    def __init__(self, why: Exception, *, pointer: str) -> None:
        """why: with `code`, `status` and `retry_after_seconds`, as `artifacts.errors.ArtifactRefused`."""
        super().__init__(
            str(why), pointer=pointer, retry_after_seconds=getattr(why, "retry_after_seconds", None)
        )
        self.code = getattr(why, "code", self.code)
        self.status = getattr(why, "status", self.status)


class PayloadCheckTooLong(Refused):
    """The check of the payload against the model's schema took too long. Send a simpler payload."""

    code = "payload_check_too_long"
    status = 422


class PayloadCheckBusy(Refused):
    """Too many long payload checks are in progress. Retry in a second."""

    code = "payload_check_busy"
    status = 503
    retry_after_seconds = 1.0


class ModelSchemaUnusable(Refused):
    """The model's schema was stored by an older version and can't be used. An operator has to replace it."""

    code = "model_schema_unusable"
    status = 503
    retry_after_seconds = 60.0


class PayloadTooLarge(Refused):
    """The payload is larger than allowed."""

    code = "payload_too_large"
    status = 413


class IdempotencyConflict(Refused):
    """This Idempotency-Key was used with another body. Use a new key for a new request."""

    code = "idempotency_conflict"
    status = 422


class ModelNotAllowed(Refused):
    """The tenant or its API key may not submit to this model."""

    code = "model_not_allowed"
    status = 403


class RunAtInPast(Refused):
    """`run_at` is in the past."""

    code = "run_at_in_past"
    status = 422


class RunAtTooFar(Refused):
    """`run_at` is too far in the future."""

    code = "run_at_too_far"
    status = 422


class DeadlineBeforeStartDeadline(Refused):
    """The deadline is before the start deadline."""

    code = "deadline_before_start_deadline"
    status = 422


class TooManyRetries(Refused):
    """`max_retries` exceeds the model's. A job can only lower it."""

    code = "max_retries_too_high"
    status = 422


class MaxRunSecondsTooLong(Refused):
    """`max_run_seconds` exceeds the model's run limit. A job can only lower it."""

    code = "max_run_seconds_too_long"
    status = 422


class MaxRunSecondsTooShort(Refused):
    """`max_run_seconds` is below `min_run_seconds` of the model."""

    code = "max_run_seconds_too_short"
    status = 422


class RateLimited(Refused):
    """The tenant exceeds its rate of submits. Retry after `Retry-After`."""

    code = "rate_limited"
    status = 429


class BatchExceedsBurst(Refused):
    """The batch has more jobs than the tenant may submit at once. Split it."""

    code = "batch_exceeds_burst"
    status = 422


class QuotaExhausted(Refused):
    """The tenant's GPU-seconds of this UTC day are used up. Retry after midnight UTC."""

    code = "quota_exhausted"
    status = 429


class ModelQueueFull(Refused):
    """The model's limit of waiting jobs is reached. Retry later."""

    code = "model_queue_full"
    status = 429


class TenantQueueFull(Refused):
    """The tenant's limit of waiting jobs is reached. Retry later."""

    code = "tenant_queue_full"
    status = 429


class TenantRunningFull(Refused):
    """The tenant's limit of running jobs is reached, and the request asked not to wait (`if_busy`)."""

    code = "tenant_running_full"
    status = 429


class Busy(Refused):
    """No slot is free for the model now, and the request asked not to wait (`if_busy`)."""

    code = "busy"
    status = 503


class NoCapacity(Refused):
    """No healthy server runs the model now, and the request asked not to wait (`if_busy`)."""

    code = "no_capacity"
    status = 503


class CapacityUnknown(Refused):
    """Redis does not answer, so free slots are unknown, and the request asked not to wait (`if_busy`)."""

    code = "leasing_unavailable"
    status = 503


class CallbackUrlRefused(Refused):
    """The callback URL points to an address that the dispatcher must not call."""

    code = "callback_url_refused"
    status = 422


class UnknownScope(Refused):
    """The scope does not exist, or the list of scopes is empty."""

    code = "unknown_scope"
    status = 422


class ScopeNeedsOperator(Refused):
    """The scope `operate` needs a key of the kind `operator`."""

    code = "scope_needs_operator"
    status = 422


class ExpiresInPast(Refused):
    """`expires_at` is in the past."""

    code = "expires_in_past"
    status = 422


class ExpiresTooFar(Refused):
    """`expires_at` is more than 100 years away. Omit it for a key that does not expire."""

    code = "expires_too_far"
    status = 422


class KeyNotActive(Refused):
    """The key is revoked, expired or already replaced."""

    code = "key_not_active"
    status = 409


class NotCancellable(Refused):
    """The job has ended; it can't be cancelled."""

    code = "not_cancellable"
    status = 409


class JobNotOver(Refused):
    """The job has not ended; its data can't be erased yet. Cancel it, or wait."""

    code = "job_not_over"
    status = 409


class JobOfRun(Refused):
    """Its run keeps copies of the job's data, as inputs of later jobs. Erase the data of the run."""

    code = "job_of_run"
    status = 409


class NotWaiting(Refused):
    """The job does not wait: it runs or has ended."""

    code = "not_waiting"
    status = 409


class NotDeadLetter(Refused):
    """The job is not a dead letter."""

    code = "not_a_dead_letter"
    status = 409


class RunWasCancelled(Refused):
    """The job is a part of a run that was cancelled, which drops its result. Rerun it as a job of its own, or
    restart the run."""

    code = "run_cancelled"
    status = 409


class PayloadErased(Refused):
    """The payload of the earlier job was erased. Run it again with a payload of your own."""

    code = "payload_erased"
    status = 409


class AttemptOver(Refused):
    """The attempt has ended, and its push token is no longer valid."""

    code = "attempt_over"


class TooManyPushes(Refused):
    """The GPU server pushed too many results or bytes for one attempt."""

    code = "too_many_pushes"
    status = 429
