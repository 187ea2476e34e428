from .callback import Callback, CallbackTry, ReceiverCircuit
from .job import (
    ACTIONABLE,
    CLIENT_ERROR,
    DEAD_LETTER,
    Attempt,
    EndNotice,
    Event,
    IdempotencyKey,
    Job,
    JobTag,
    PushedResult,
    Timings,
)
from .records import PurgeLedger, Rollup, SignInFailure, SweepRun, TagUsage, Tally, WorkerSign
from .tenant import ApiKey, Tenant

__all__ = [
    "ACTIONABLE",
    "CLIENT_ERROR",
    "DEAD_LETTER",
    "ApiKey",
    "Attempt",
    "Callback",
    "CallbackTry",
    "EndNotice",
    "Event",
    "IdempotencyKey",
    "Job",
    "JobTag",
    "PurgeLedger",
    "PushedResult",
    "ReceiverCircuit",
    "Rollup",
    "SignInFailure",
    "SweepRun",
    "TagUsage",
    "Tally",
    "Tenant",
    "Timings",
    "WorkerSign",
]
