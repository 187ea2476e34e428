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


class TooManyWaits(Refused):
    """The tenant's runs have as many open waits as they may have."""

    code = "too_many_waits"
    status = 429
    retry_after_seconds = 5.0


class TooManyWorkflows(Refused):
    """The tenant has as many workflows as it may have."""

    code = "too_many_workflows"
    status = 409


class TooManyVersions(Refused):
    """The tenant's workflows have as many versions as they may have."""

    code = "too_many_versions"
    status = 409


class InputsTooLarge(Refused):
    """The inputs are too large."""

    code = "inputs_too_large"
    status = 413


class RunNotFinished(Refused):
    """The run is still under way; it can be restarted once it has ended."""

    code = "run_not_finished"
    status = 409


class NothingToRestart(Refused):
    """No node of the run failed or was cancelled. Name the nodes to run again, or start a new run."""

    code = "nothing_to_restart"
    status = 409


class OutputNotWanted(Refused):
    """The run that it is a part of would drop its output."""

    code = "output_not_wanted"
    status = 409


class RunNotOver(Refused):
    """The run has not ended; its data can't be erased yet. Cancel it, or wait."""

    code = "run_not_over"
    status = 409


class PartOfRun(Refused):
    """The run that it is a part of keeps copies of its data. Erase the data of that run."""

    code = "part_of_run"
    status = 409


class RunErased(Refused):
    """The data of the run was erased; it can't run again. Start a new run."""

    code = "run_erased"
    status = 409


class RunFinished(Refused):
    """The run has ended."""

    code = "run_finished"
    status = 409


class NotWaitingForAnswer(Refused):
    """The node does not wait for an answer (any more)."""

    code = "not_waiting"
    status = 409


class OtherRound(Refused):
    """The answer is for the question of another round of the node."""

    code = "other_round"
    status = 409


class NotYours(Refused):
    """The node names the API keys that may answer it, and this one is not among them."""

    code = "not_yours"
    status = 403


class AnswerTooLarge(Refused):
    """The answer or the body of the signal is too large."""

    code = "answer_too_large"
    status = 413


class SignalTooLarge(Refused):
    """The copies of the signal's body would be too large."""

    code = "signal_too_large"
    status = 413


class TooManySignals(Refused):
    """The tenant has sent as many signals and answers with an Idempotency-Key as are kept."""

    code = "too_many_signals"
    status = 429
    retry_after_seconds = 60.0


class WaitExpired(Refused):
    """The time for an answer is over."""

    code = "wait_expired"
    status = 410


class AnswerInvalid(Refused):
    """The answer is none of the choices, or does not match the form."""

    code = "answer_invalid"
    status = 422


class UnknownSchedule(Refused):
    """There is no such schedule."""

    code = "unknown_schedule"
    status = 404


class ScheduleExists(Refused):
    """There is a schedule of this name. PUT replaces it."""

    code = "schedule_exists"
    status = 409


class TooManySchedules(Refused):
    """The tenant has as many schedules as it may have."""

    code = "too_many_schedules"
    status = 409


class BackfillRefused(Refused):
    """The backfill has no due time, or too many."""

    code = "backfill_refused"
    status = 422


class PauseRefused(Refused):
    """The pause would end before it begins."""

    code = "pause_refused"
    status = 422


class TooManyBackfilled(Refused):
    """Too many due times of the tenant's backfills wait."""

    code = "too_many_backfilled"
    status = 429
    retry_after_seconds = 60.0


class TargetInvalid(Refused):
    """The target of the schedule can't be started. code: why."""

    code = "target_invalid"
    status = 422

    def __init__(
        self, message: str = "", *, code: str = "target_invalid", pointer: str | None = None
    ) -> None:
        super().__init__(message, pointer=pointer)
        self.code = code
