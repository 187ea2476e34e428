"""The errors with which requests about workflows are refused, and nodes of runs fail. The docstring of a
class is its default message."""

from __future__ import annotations

from jobs.domain.errors import Refused


class UnknownWorkflow(Refused):
    """There is no such workflow, or no such version of it."""

    code = "unknown_workflow"
    status = 404


class UnknownNode(Refused):
    """The run has no such node."""

    code = "unknown_node"
    status = 422


class TooManyRuns(Refused):
    """The tenant has as many unfinished runs as it may have."""

    code = "too_many_runs"
    status = 429
    retry_after_seconds = 5.0


class InputsTooLarge(Refused):
    """The inputs are too large."""

    code = "inputs_too_large"
    status = 413


class RunNotFinished(Refused):
    """The run is still under way; it can be restarted once it has ended."""

    code = "run_not_finished"
    status = 409


class RunFinished(Refused):
    """The run has ended."""

    code = "run_finished"
    status = 409


class NotWaitingForAnswer(Refused):
    """The node does not wait for an answer (any more)."""

    code = "not_waiting"
    status = 409


class WaitExpired(Refused):
    """The time for an answer is over."""

    code = "wait_expired"
    status = 410


class AnswerInvalid(Refused):
    """The answer is none of the choices, or does not match the form."""

    code = "answer_invalid"
    status = 422
