"""Why a job ended as it did, beyond what a GPU says (`gpus.errors`), and what services refuse."""

from __future__ import annotations

DEADLINE_EXCEEDED = "deadline_exceeded"
POISON = "poison"
CANCELLED = "cancelled"
LOST_AT_MOST_ONCE = "lost_at_most_once"
"""The model is marked `at_most_once` and the attempt's end is unknown: running it again is not allowed."""


class Refused(Exception):
    """The request can't be carried out. Subclasses name their stable code; the message is for people."""

    code = "refused"
    status = 409

    def __init__(self, message: str = "", *, pointer: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.pointer = pointer


class UnknownModel(Refused):
    """No such model is registered."""

    code = "unknown_model"
    status = 422


class PayloadInvalid(Refused):
    """The payload does not match the model's schema."""

    code = "payload_invalid"
    status = 422


class PayloadTooLarge(Refused):
    """The payload is larger than allowed."""

    code = "payload_too_large"
    status = 413


class IdempotencyConflict(Refused):
    """This Idempotency-Key was used with another body."""

    code = "idempotency_conflict"
    status = 422


class CallbackUrlRefused(Refused):
    """The callback URL points where this dispatcher must not call."""

    code = "callback_url_refused"
    status = 422


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
