"""The Celery tasks. `jobs.wakes` has their names, and publishes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery import shared_task

from jobs import wakes

if TYPE_CHECKING:
    from jobs.callbacks.delivery_worker import DeliveryWorker
    from jobs.execution.slot_loop import WorkReport

MAX_NAMED = 20
"""Failed jobs in the report of a task: what Flower shows stays small."""


class JobFailed(Exception):
    """The only job of this task did not complete; Flower shows the task as failed. The job's row says what
    follows."""


@shared_task(name=wakes.WORK, throws=(JobFailed,), ignore_result=True)
def work(pool: str, host: str | None = None) -> dict[str, Any]:
    """Claim and run jobs of this pool: a wake. A long job is a task of its own, short ones share one
    (`TimeSlice`).

    host: of a pinned worker. Returns the report that Flower shows. Raises JobFailed.
    """
    from jobs.execution.gpu_worker import current_worker

    return shown(current_worker().work(pool, host))


@shared_task(name=wakes.SWEEP, ignore_result=True, send_events=False)
def sweep(name: str) -> None:
    """Run one sweep, or with ``tick`` all that are due.

    Without events, so not in Flower: one each second would push the jobs out of its list. The admin and
    /metrics show their ages.
    """
    from jobs.sweeps.runner import run_sweep

    run_sweep(name)


@shared_task(name=wakes.DELIVER, ignore_result=True)
def deliver(callback_id: str) -> None:
    """Hint that this callback may be due. The delivery worker decides which callbacks are next."""
    current_delivery_worker().nudge(callback_id)


@lru_cache(maxsize=1)
def current_delivery_worker() -> DeliveryWorker:
    """Return the delivery worker of this process, started on first use, by `queue_worker --queues
    callbacks`."""
    from jobs.callbacks.delivery_worker import DeliveryWorker
    from jobs.ports import production_ports

    worker = DeliveryWorker(production_ports())
    worker.start()
    return worker


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
