from .api_key import ApiKey
from .attempt import Attempt
from .callback import Callback, CallbackTry, ReceiverCircuit
from .event import Event
from .idempotency import IdempotencyKey
from .job import DEAD_LETTER, Job, JobTag
from .ledger import PurgeLedger
from .pushed_result import PushedResult
from .rollup import Rollup
from .sign_in import SignInFailure
from .sweep_run import SweepRun
from .tally import Tally
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
