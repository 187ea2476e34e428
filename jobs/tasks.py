"""The Celery tasks. Their names are in `jobs.wakes`, which sends them."""

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

MOST_NAMED = 20
"""Of a task's failed jobs: what Flower is told stays small."""


class JobFailed(Exception):
    """The one job of this task did not complete; its row says what follows. Flower shows it as a failure."""


@shared_task(name=wakes.WORK, throws=(JobFailed,), ignore_result=True)
def work(pool: str, host: str | None = None) -> dict[str, Any]:
    """Claims and runs jobs of this pool; a real GPU job is a task of its own. Returns what Flower shows."""
    from jobs.execution.gpu_worker import current_worker

    return shown(current_worker().work(pool, host))


@shared_task(name=wakes.SWEEP, ignore_result=True, send_events=False)
def sweep(name: str) -> dict[str, Any]:
    """Runs one sweep, or with ``tick`` all that are due. Returns what each one counted. Flower does not list
    them: one each second would push the jobs out of its view; their ages are in the admin and in /metrics."""
    from jobs.sweeps.runner import run_sweep

    return run_sweep(name)


@shared_task(name=wakes.DELIVER, ignore_result=True)
def deliver(callback_id: str) -> None:
    """Says that there are callbacks to send; which ones are next, their worker decides."""
    current_delivery_worker().nudge(callback_id)


@lru_cache(maxsize=1)
def current_delivery_worker() -> DeliveryWorker:
    """The callbacks worker of this process, started on first use: by `queue_worker --queues callbacks`."""
    from jobs.callbacks.delivery_worker import DeliveryWorker
    from jobs.ports import production_ports

    worker = DeliveryWorker(production_ports())
    worker.start()
    return worker


def shown(reports: Sequence[WorkReport]) -> dict[str, Any]:
    """One job: its report, or `JobFailed` with it. Many short ones, or none: how many, and who failed."""
    failed = [f"{report.job_id} {report.error_code}" for report in reports if report.error_code]
    if len(reports) != 1:
        more = len(failed) - MOST_NAMED
        named = [*failed[:MOST_NAMED], f"and {more} more"] if more > 0 else failed
        return {"jobs": len(reports), "failed": named}
    report = {key: value for key, value in asdict(reports[0]).items() if value != ""}
    if failed:
        raise JobFailed(" ".join(f"{key}={value}" for key, value in report.items()))
    return report
