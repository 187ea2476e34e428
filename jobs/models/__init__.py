from .api_key import ApiKey
from .attempt import Attempt
from .callback import Callback, CallbackTry, ReceiverCircuit
from .event import Event
from .idempotency import IdempotencyKey
from .job import DEAD_LETTER, Job, JobTag
from .pushed_result import PushedResult
from .sign_in import SignInFailure
from .sums import PurgeLedger, Rollup, Tally
from .sweep_run import SweepRun
from .tenant import Tenant
from .worker_sign import WorkerSign

__all__ = [
    "DEAD_LETTER",
    "ApiKey",
    "Attempt",
    "Callback",
    "CallbackTry",
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
    "Tally",
    "Tenant",
    "WorkerSign",
]
