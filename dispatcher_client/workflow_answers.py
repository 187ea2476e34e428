"""Typed answers about workflows: versions, runs, nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .answers import Reason, StartsIn
from .errors import DispatcherError, NoAnswer
from .job import FINAL


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """A workflow in a list. latest: number of its newest version."""

    name: str
    latest: int


@dataclass(frozen=True, slots=True)
class WorkflowVersionSummary:
    """A version of a workflow in a list. sha256: of the definition's canonical JSON."""

    name: str
    version: int
    sha256: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WorkflowVersion(WorkflowVersionSummary):
    """A version of a workflow."""

    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run failed. node: the node whose failure decided it."""

    code: str
    message: str
    node: str | None


@dataclass(frozen=True, slots=True)
class ParentNode:
    """The node that a sub-run belongs to. node: its key, `build[3]` in a map."""

    run_id: str
    node: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run. status: running, completed, failed or cancelled. parent: of a sub-run; None: the run was
    started. round: raised by each restart. erased_at: when the last of its data was erased. counts: nodes of
    the definition by state. waiting_for: nodes that wait for a person or a signal; None in lists, as `inputs`
    and `output`, which are None too for a key that may not see payloads. output_url: of the artifact of
    an output that is too long for this answer, which `Client.workflows.output` reads. urls: paths, `page`
    among them."""

    run_id: str
    workflow: str
    version: int
    status: str
    parent: ParentNode | None
    round: int
    paused: bool
    error: RunError | None
    counts: Mapping[str, Any]
    priority: int
    tags: tuple[str, ...]
    created_at: datetime
    finished_at: datetime | None
    deadline_at: datetime | None
    erased_at: datetime | None
    waiting_for: tuple[str, ...] | None
    inputs: Any
    output: Any
    output_url: str | None
    urls: Mapping[str, Any]

    @property
    def is_over(self) -> bool:
        return self.status in FINAL


@dataclass(frozen=True, slots=True)
class Question:
    """What a human node asks. choose_from: the choices; None where it has a form. form: JSON Schema.
    answer_by: names of the API keys that may answer; None: all. may_answer: whether this client's key may."""

    title: str
    choose_from: tuple[Any, ...] | None
    form: Any
    expires_at: datetime | None
    answer_by: tuple[str, ...] | None = None
    may_answer: bool | None = None


@dataclass(frozen=True, slots=True)
class NodeError:
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class MapItems:
    """The items of a map. left: not started."""

    total: int
    completed: int
    failed: int
    running: int
    left: int


@dataclass(frozen=True, slots=True)
class RunDataErased:
    """The data of a run that was erased. erased_at: None while some of its jobs still have data: within
    minutes."""

    run_id: str
    requested_at: datetime
    erased_at: datetime | None


@dataclass(frozen=True, slots=True)
class RunNode:
    """A node of a run, or a child of a map (`images[3]`). kind: model, human, signal, timer or workflow.
    output: a model node's is its job's result. output_url: as of a run. question: of a human node without
    an answer. answered_by: of a human node: ``key:`` and the API key's prefix, ``operator`` or ``expiry``.
    items: of a map; `node(run_id, key, index)` returns one of them."""

    key: str
    round: int
    kind: str
    state: str
    job_id: str | None
    child_run_id: str | None
    output: Any
    output_url: str | None
    question: Question | None
    answered_by: str | None
    error: NodeError | None
    started_at: datetime | None
    finished_at: datetime | None
    items: MapItems | None


@dataclass(frozen=True, slots=True)
class RunReason:
    """A reason why a run waits. node: the one that waits; None: the run as a whole. until: when the wait ends
    by itself. position, starts_in, reasons: of the waiting job, as of `Client.explain`."""

    code: str
    message: str
    node: str | None
    job_id: str | None
    child_run_id: str | None
    until: datetime | None
    position: int | None
    starts_in: StartsIn | None
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class EndsIn:
    """When a run will probably end. seconds: from now, if each answer came at once; at least so many where
    `unknown` names nodes; None: no time is known. unanswered_seconds: if no answer came, and each wait lasted
    until it expires; None: unknown, or for ever. path: nodes on the longest path. answers: nodes that wait
    for people or signals. unknown: nodes without a learnt time, and those whose job can't start for now.
    misses_deadline: the run's deadline comes first. held: paused or cancelling: why no time is given."""

    seconds: float | None
    unanswered_seconds: float | None
    path: tuple[str, ...]
    answers: tuple[str, ...]
    unknown: tuple[str, ...]
    misses_deadline: bool
    held: str | None


@dataclass(frozen=True, slots=True)
class RunCost:
    """GPU-seconds of the ended attempts of all rounds, in all and by node, with those of sub-runs."""

    gpu_seconds: float
    nodes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunExplanation:
    """Why a run waits, when it will end, and what it cost. ends_in: None: it has ended."""

    run_id: str
    status: str
    reasons: tuple[RunReason, ...]
    ends_in: EndsIn | None
    cost: RunCost


class RunFailed(DispatcherError):
    """The run failed or was cancelled. code, message, node: of its error."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.code = run.error.code if run.error else run.status
        self.message = run.error.message if run.error else ""
        self.node = run.error.node if run.error else None
        at = f" at node {self.node}" if self.node else ""
        super().__init__(f"Run {run.run_id} {run.status}{at}: {self.code}: {self.message}")


class RunNotOver(DispatcherError, TimeoutError):
    """The run has not ended, or does not wait for an answer, in time; it continues. run: its last known
    state."""

    def __init__(self, run: Run, seconds: float) -> None:
        super().__init__(f"Run {run.run_id} is {run.status} after {seconds:g} s.")
        self.run = run


def read_taken(document: Mapping[str, Any]) -> int:
    """Return how many nodes took a signal. Raises NoAnswer."""
    taken = document.get("taken")
    if type(taken) is not int:
        raise NoAnswer("the answer does not name how many nodes took the signal")
    return taken
