"""Request bodies about runs; that of a definition is `workflows.definition.body.Definition`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from foundation.http_api.json_body import Body, Items, JsonObject, about
from foundation.ids import ID_LENGTH
from jobs.submission.request import DEFAULT_PRIORITY, CallbackUrl, Priority, Tags
from workflows.definition.body import NodeName
from workflows.operations.start import RunOptions
from workflows.schedules.body import MAX_SECONDS

MAX_ROUND = 2**31 - 1


class _Start(Body):
    """What each start of a run may have."""

    inputs: Annotated[Any, about("Match the workflow's `inputs` schema.")] = None
    priority: Annotated[Priority, about("Of all its jobs: 1 (first) to 9 (last); true means 2.")] = (
        DEFAULT_PRIORITY
    )
    deadline_seconds: Annotated[
        Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None,
        about("Seconds from its start after which a run that has not ended fails; its jobs are cancelled."),
    ] = None
    tags: Annotated[
        Tags | None,
        about("Of the run and of all its jobs."),
    ] = None
    callback_url: Annotated[
        CallbackUrl | None,
        about("Is sent a signed POST (Standard Webhooks) at the end of each round of the run."),
    ] = None

    def options(self) -> RunOptions:
        """Return how the run is to be run."""
        return {
            "priority": self.priority,
            "deadline_seconds": self.deadline_seconds,
            "tags": self.tags or (),
            "callback_url": self.callback_url,
        }


class StartRun(_Start):
    """A run to start."""

    version: Annotated[int | None, Field(ge=1), about("Default: the newest.")] = None


class StartInlineRun(_Start):
    """A run to start, with its definition."""

    definition: Annotated[JsonObject, about("As `put_workflow` takes it; `name` is optional.")]


class RestartRun(Body):
    """How to restart a run."""

    nodes: Annotated[
        Annotated[list[NodeName], Items(least=1, most=1_000, unique=True)] | None,
        about("Nodes to run again, with all nodes after them. Default: those that failed or were cancelled."),
    ] = None


class Answer(Body):
    """The answer to a human node."""

    answer: Annotated[Any, about("One of the choices, or JSON that matches the form.")]
    round: Annotated[
        Annotated[int, Field(ge=1, le=MAX_ROUND)] | None,
        about(
            "Round of the node whose question it answers, as `list_run_nodes` shows it: 409 `other_round` if "
            "the node was restarted since. Default: the newest."
        ),
    ] = None


class SentSignal(Body):
    """A signal."""

    body: Annotated[Any, about("The output of the nodes that wait for it.")] = None
    run_id: Annotated[
        Annotated[str, Field(min_length=ID_LENGTH, max_length=ID_LENGTH)] | None,
        about("Only for this run. Default: for all runs that wait for the signal."),
    ] = None
