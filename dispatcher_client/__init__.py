"""A client of the GPU dispatcher: submit, wait, stream, cancel, list, explain. `Client` needs only the
standard library, `AsyncClient` httpx; docs/reference/client.md.

It can be copied into another project: it imports nothing else of this repository."""

from .answers import (
    DataErased,
    Estimate,
    Explanation,
    Key,
    Limits,
    Me,
    Model,
    Reason,
    StartsIn,
    Usage,
    UsageRow,
    Used,
)
from .artifacts import Artifact, FileChanged
from .async_client import AsyncClient
from .calls import ListFilter
from .client import Client
from .errors import (
    AnswerTooLarge,
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
from .job import Job, JobFailed, NotOver, PartialOutput, Progress, Timings
from .log import LogLine
from .references import WorkflowError, default, each, flat, fn, literal
from .spool import Flushed
from .stream import Event
from .submit_options import SubmitOptions
from .workflow import Map, Node, Workflow
from .workflow_answers import (
    MapItems,
    NodeError,
    Question,
    Run,
    RunDataErased,
    RunError,
    RunExplanation,
    RunFailed,
    RunNode,
    RunNotOver,
    WorkflowSummary,
    WorkflowVersion,
    WorkflowVersionSummary,
)

__version__ = "0.1.0"
"""The dispatcher's own version; pyproject.toml of this folder reads it."""

__all__ = [
    "AnswerTooLarge",
    "Artifact",
    "AsyncClient",
    "Busy",
    "Client",
    "Conflict",
    "DataErased",
    "DispatcherError",
    "Estimate",
    "Event",
    "Explanation",
    "FieldProblem",
    "FileChanged",
    "Flushed",
    "Invalid",
    "Job",
    "JobFailed",
    "Key",
    "Limits",
    "ListFilter",
    "LogLine",
    "Map",
    "MapItems",
    "Me",
    "Model",
    "NoAnswer",
    "Node",
    "NodeError",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "NotOver",
    "PartialOutput",
    "Problem",
    "Progress",
    "Question",
    "Reason",
    "Run",
    "RunDataErased",
    "RunError",
    "RunExplanation",
    "RunFailed",
    "RunNode",
    "RunNotOver",
    "Spooled",
    "StartsIn",
    "SubmitOptions",
    "Timings",
    "Unavailable",
    "Usage",
    "UsageRow",
    "Used",
    "Workflow",
    "WorkflowError",
    "WorkflowSummary",
    "WorkflowVersion",
    "WorkflowVersionSummary",
    "default",
    "each",
    "flat",
    "fn",
    "literal",
]
