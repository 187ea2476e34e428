"""A client of the GPU dispatcher: submit, wait, stream, cancel. Standard library only;
docs/reference/client.md.

It can be copied into another project: it imports nothing else of this repository."""

from .client import Client
from .errors import (
    Busy,
    Conflict,
    DispatcherError,
    FieldProblem,
    Invalid,
    NoAnswer,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Problem,
    Spooled,
    Unavailable,
)
from .job import Job, NotOver
from .spool import Flushed
from .stream import Event
from .submit_options import SubmitOptions

__all__ = [
    "Busy",
    "Client",
    "Conflict",
    "DispatcherError",
    "Event",
    "FieldProblem",
    "Flushed",
    "Invalid",
    "Job",
    "NoAnswer",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "NotOver",
    "Problem",
    "Spooled",
    "SubmitOptions",
    "Unavailable",
]
