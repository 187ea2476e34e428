"""The Celery tasks. `jobs.wakes` has their names, and publishes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from celery import Task, shared_task

from foundation.program import command_line
from jobs import wakes

if TYPE_CHECKING:
    from jobs.callbacks.delivery_worker import DeliveryWorker
    from jobs.execution.gpu_worker import GpuWorker
    from jobs.execution.slot_loop import WorkReport
    from jobs.sweeps.runner import Runner

Role = TypeVar("Role")

MAX_NAMED = 20
"""Failed jobs in the report of a task: what Flower shows stays small."""


class JobFailed(Exception):
    """The only job of this task did not complete; Flower shows the task as failed. The job's row says what
    follows."""


class RoleTask(Task, Generic[Role]):  # type: ignore[misc]
    """A task whose work an object of its process does: handed to it at boot, and kept by the Celery app."""

    _role: Role | None = None

    def hand(self, role: Role) -> None:
        """Let this object do the work. Raises RuntimeError if another one does."""
        if self._role is not None:
            raise RuntimeError(f"this process has an object that does {self.name} already")
        self._role = role

    @property
    def role(self) -> Role:
        """The object that was handed over. Raises RuntimeError without one."""
        if self._role is None:
            raise RuntimeError(
                f"this process does not do {self.name}: start it by `{command_line('gpu_worker')}` or "
                f"`{command_line('queue_worker')}`"
            )
        return self._role


@shared_task(base=RoleTask, bind=True, name=wakes.WORK, throws=(JobFailed,), ignore_result=True)
def work(self: RoleTask[GpuWorker], pool: str, host: str | None = None) -> dict[str, Any]:
    """Claim and run jobs of this pool: a wake. A long job is a task of its own, short ones share one
    (`TimeSlice`).

    host: of a pinned worker. Returns the report that Flower shows. Raises JobFailed.
    """
    return shown(self.role.work(pool, host))


@shared_task(base=RoleTask, bind=True, name=wakes.SWEEP, ignore_result=True, send_events=False)
def sweep(self: RoleTask[Runner], name: str) -> None:
    """Run one sweep, or with ``tick`` all that are due.

    Without events, so not in Flower: one each second would push the jobs out of its list. The admin and
    /metrics show their ages.
    """
    self.role.run_named(name)


@shared_task(base=RoleTask, bind=True, name=wakes.DELIVER, ignore_result=True)
def deliver(self: RoleTask[DeliveryWorker], callback_id: str) -> None:
    """Hint that this callback may be due. The delivery worker decides which callbacks are next."""
    self.role.nudge(callback_id)


def shown(reports: Sequence[WorkReport]) -> dict[str, Any]:
    """Return the report of a task for Flower: of one job its fields; of many or none their number and
    failures.

    Raises JobFailed if the only job failed.
    """
    failed = [f"{report.job_id} {report.error_code}" for report in reports if report.error_code]
    if len(reports) != 1:
        more = len(failed) - MAX_NAMED
        named = [*failed[:MAX_NAMED], f"and {more} more"] if more > 0 else failed
        return {"jobs": len(reports), "failed": named}
    report = {key: value for key, value in asdict(reports[0]).items() if value != ""}
    if failed:
        raise JobFailed(" ".join(f"{key}={value}" for key, value in report.items()))
    return report
