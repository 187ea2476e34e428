"""Response bodies about workflows and runs."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from foundation.http_api.json_body import Choice, Items, JsonObject, about, choices
from foundation.http_api.openapi import Instant
from gpus.api.answers import page_of
from jobs.api.answers import Reason, StartsIn
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState, RunState

_LONG_OUTPUT = (
    "Where the output is, as JSON, if it was too long for this answer: `output` then refers to that "
    "artifact. Else null."
)


class Workflow(TypedDict):
    """A workflow in a list."""

    name: str
    latest: Annotated[int, about("Number of its newest version.")]


WorkflowPage = page_of(Workflow)


class WorkflowVersionSummary(TypedDict):
    """A version of a workflow in a list."""

    name: str
    version: int
    sha256: Annotated[str, about("Of the definition's canonical JSON.")]
    created_at: Instant


WorkflowVersionPage = page_of(WorkflowVersionSummary)


class WorkflowVersion(WorkflowVersionSummary):
    """A version of a workflow."""

    definition: JsonObject


class RunError(TypedDict):
    code: str
    message: Annotated[str, about("Names the node's own code and reason, and how many more nodes failed.")]
    node: Annotated[str | None, about("The node whose failure decided it.")]


class RunUrls(TypedDict):
    self: str
    nodes: str
    events: str
    explain: str
    cancel: str
    restart: str
    page: Annotated[str | None, about("Its page in the admin.")]


class ParentNode(TypedDict):
    """The node that a sub-run belongs to."""

    run_id: str
    node: Annotated[str, about("Its key: `build`, or `build[3]` in a map.")]


class RunSummary(TypedDict):
    """A run in a list."""

    run_id: str
    workflow: str
    version: int
    status: Annotated[str, choices(RunState)]
    parent: Annotated[ParentNode | None, about("Of a sub-run; null: the run was started.")]
    round: Annotated[int, about("Raised by each restart.")]
    paused: bool
    error: RunError | None
    counts: Annotated[dict[str, int], about("Nodes of the definition by state.")]
    priority: int
    tags: list[str]
    created_at: Instant
    finished_at: Instant | None
    deadline_at: Instant | None
    erased_at: Annotated[Instant | None, about("When the last of its data was erased.")]
    urls: RunUrls


class Run(RunSummary):
    """A run."""

    waiting_for: Annotated[list[str], about("Nodes that wait for a person or a signal, at most 20.")]
    inputs: Any
    output: Any
    output_url: Annotated[str | None, about(_LONG_OUTPUT)]


RunPage = page_of(RunSummary)


class RunDataErased(TypedDict):
    """The data of a run that was erased."""

    run_id: str
    requested_at: Instant
    erased_at: Annotated[Instant | None, about("Null while jobs of the run still have data: within minutes.")]


class NodeError(TypedDict):
    code: str
    message: str


class Question(TypedDict):
    """What a human node asks."""

    title: str
    choose_from: Annotated[list[Any] | None, about("The choices; null where the node has a form.")]
    form: Annotated[dict[str, Any] | bool | None, about("JSON Schema of the answer.")]
    expires_at: Instant | None
    answer_by: Annotated[list[str] | None, about("Names of the API keys that may answer; null: all.")]
    may_answer: Annotated[bool, about("Whether the reader may. Operators may answer all.")]


class MapItems(TypedDict):
    """The items of a map."""

    total: int
    completed: int
    failed: int
    running: int
    left: Annotated[int, about("Not started.")]


class RunNode(TypedDict):
    """A node of a run, or a child of a map (`detect[17]`)."""

    key: str
    round: int
    kind: Annotated[str, choices(NodeKind)]
    state: Annotated[str, choices(NodeState)]
    job_id: str | None
    child_run_id: str | None
    cached_from: Annotated[str | None, about("Id of the job whose result the node took from the cache.")]
    output: Annotated[
        Any, about("Null where the key may not see payloads. A model node's is its job's result.")
    ]
    output_url: Annotated[str | None, about(_LONG_OUTPUT)]
    question: Annotated[
        Question | None, about("Of a human node without an answer. Null where the key may not see payloads.")
    ]
    answered_by: Annotated[
        str | None, about("Of a human node: `key:` and the API key's prefix, `operator`, or `expiry`.")
    ]
    error: NodeError | None
    started_at: Instant | None
    finished_at: Instant | None
    items: Annotated[MapItems | None, about("Of a map.")]


RunNodePage = page_of(RunNode)


class RunReason(TypedDict):
    """A reason why a run waits."""

    code: str
    message: str
    node: Annotated[str | None, about("The node that waits; null: the run as a whole.")]
    job_id: str | None
    child_run_id: str | None
    until: Annotated[Instant | None, about("When the wait ends by itself.")]
    position: Annotated[int | None, about("Of the waiting job in its queue, estimated, from 1.")]
    starts_in: Annotated[StartsIn | None, about("Of the waiting job; null: unknown.")]
    reasons: Annotated[list[Reason], about("Of the waiting job, as by `explain_job`.")]


class EndsIn(TypedDict):
    """When a run will probably end."""

    seconds: Annotated[
        float | None,
        about(
            "From now, by learnt run times and the expected starts of waiting jobs, if each answer came at "
            "once. At least so many where `unknown` names nodes; null: no time is known."
        ),
    ]
    unanswered_seconds: Annotated[
        float | None,
        about("If no answer came, and each wait lasted until it expires; null: unknown, or for ever."),
    ]
    path: Annotated[list[str], about("Nodes on the longest path.")]
    answers: Annotated[list[str], about("Nodes that wait for people or signals.")]
    unknown: Annotated[
        list[str], about("Nodes without a learnt time, and those whose job can't start for now.")
    ]
    misses_deadline: Annotated[bool, about("The run's deadline comes first; then the run fails.")]
    held: Annotated[
        Annotated[str, Choice("paused", "cancelling")] | None,
        about("Why no time is given: the run is paused, or ends by its cancel."),
    ]


class RunCost(TypedDict):
    """GPU-seconds of the ended attempts of all rounds."""

    gpu_seconds: float
    nodes: Annotated[
        dict[str, float],
        about("By node: a map's children are added up, and a node's sub-runs of all levels."),
    ]


class RunExplanation(TypedDict):
    """Why a run waits, when it will end, what it cost."""

    run_id: str
    status: Annotated[str, choices(RunState)]
    reasons: Annotated[list[RunReason], Items(least=1)]
    ends_in: EndsIn | None
    cost: RunCost


class Taken(TypedDict):
    """How many nodes took a signal."""

    taken: int
