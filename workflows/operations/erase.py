"""Erases the data of a run, what it was given and made: in its own rows at once, in those of its jobs in
batches. Artifacts that nothing else uses are gone at once, those of all its jobs.

A job's or a sub-run's data alone can't be erased while its run keeps it: a result is the input of later
nodes, of sub-runs, of choices and of the run's output. Rows, times, states and hashes stay.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from artifacts.models import ArtifactUse
from artifacts.removal import erase_unused, remove_erased
from artifacts.uses import drop_run_uses
from foundation.database.connections import write_lock
from gpus.registry.audit import record
from jobs.domain.errors import ArtifactStoreOfOneHost, ArtifactStoreUnavailable, JobNotOver
from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import Job
from jobs.operations.erase import (
    ERASED,
    body_without_data,
    erase_artifacts,
    erase_job_data,
    erased,
    is_erased,
)
from jobs.ports import Ports
from jobs.submission.artifact_refs import require_host_of_files
from workflows.domain.errors import PartOfRun, RunNotOver
from workflows.execution.callbacks import callbacks_of
from workflows.models import MapChunk, Node, Run, RunEvent, Wait

JOBS_AT_ONCE = 100
"""Jobs whose data one call erases; the `erasing_runs` sweep erases that of the others."""


def erase_run_data(
    run_id: str, *, ports: Ports, by: str | None = None, jobs_at_once: int = JOBS_AT_ONCE
) -> Run:
    """Erase the data of a run that has ended, with its sub-runs of all levels; may be repeated.

    Returns the run; without `erased_at` while jobs still have data, which a sweep erases. Raises
    Run.DoesNotExist, RunNotOver, PartOfRun for a sub-run, and ArtifactStoreOfOneHost.
    """
    now = ports.clock.now()
    found: list[Run] = []
    with write_lock(jobs_at_once), transaction.atomic():
        level = list(Run.objects.select_for_update().filter(id=run_id))
        if not level:
            raise Run.DoesNotExist
        _refuse_sub_run(level[0])
        require_host_of_files(level[0].tenant_id, ports)  # else the rows go, and the files stay
        while level:
            if any(run.finished_at is None for run in level):
                raise RunNotOver
            for run in level:
                _erase_rows(run, now)
            found += level
            parents = [run.id for run in level]
            level = list(Run.objects.select_for_update().filter(parent_node__run_id__in=parents))
        artifacts = erase_unused(drop_run_uses([run.id for run in found]), now)
        record(by, "erase_run_data", f"run:{run_id}")
    for run in found:
        artifacts += _erase_artifacts(run, now, jobs_at_once)
    remove_erased(artifacts, ports.artifact_store, now)
    left = jobs_at_once
    for run in reversed(found):
        left -= erase_jobs(run, ports, left).done
        if left <= 0:
            break
    return Run.objects.select_related("version__workflow").get(id=run_id)


def _refuse_sub_run(run: Run) -> None:
    """Raise PartOfRun for a sub-run: the runs above it have its inputs, and its output or are about to."""
    above = run
    while above.parent_node_id is not None:
        above = Run.objects.only("id", "parent_node_id").get(nodes__id=above.parent_node_id)
    if above is not run:
        raise PartOfRun(
            f"The sub-run belongs to the run {above.id}, which has copies of its data. "
            f"DELETE /api/v1/runs/{above.id}/data erases all of them."
        )


@dataclass(frozen=True, slots=True)
class ErasedJobs:
    """done: jobs whose data was erased. fault: why files can't be erased in this process, or ""."""

    done: int
    fault: str = ""


def erase_jobs(run: Run, ports: Ports, most: int = JOBS_AT_ONCE) -> ErasedJobs:
    """Erase the data of the next jobs of a run whose own rows were erased. A later call continues after a
    dead letter that was retried, and after a fault."""
    nodes = Node.objects.filter(run=run, id__gt=run.erased_up_to or "").exclude(job_id=None).order_by("id")
    some = list(nodes.values_list("id", "job_id")[:most])
    done, fault = 0, ""
    for node_id, job_id in some:
        with suppress(Job.DoesNotExist):
            try:
                erase_job_data(job_id or "", ports=ports, with_follower=True)
            except JobNotOver:
                break
            except (ArtifactStoreOfOneHost, ArtifactStoreUnavailable) as error:
                fault = str(error)
                break
        done += 1
        run.erased_up_to = node_id
    if done == len(some) < most:
        run.erased_at = ports.clock.now()
    Run.objects.filter(id=run.id).update(erased_up_to=run.erased_up_to, erased_at=run.erased_at)
    return ErasedJobs(done, fault)


def _erase_artifacts(run: Run, now: datetime, jobs_at_once: int) -> list[str]:
    """Drop the uses of artifacts by all jobs of a run, which have ended; return the artifacts that are gone.
    A dead letter that an operator retried keeps its own."""
    uses = ArtifactUse.objects.filter(job=OuterRef("job_id"))
    nodes = Node.objects.filter(Exists(uses), run=run).order_by("job_id")
    ended = Job.objects.filter(state__in=[state.value for state in FINAL_JOB_STATES]).order_by("id")
    gone: list[str] = []
    last = ""
    while ids := list(nodes.filter(job_id__gt=last).values_list("job_id", flat=True)[:jobs_at_once]):
        with write_lock(jobs_at_once), transaction.atomic():
            locked = ended.select_for_update().filter(id__in=ids).values_list("id", flat=True)
            gone += erase_artifacts(list(locked), now)
        last = ids[-1] or ""
    return gone


def _erase_rows(run: Run, now: datetime) -> None:
    mark: dict[str, Any] = {ERASED: {"at": now.isoformat()}}
    if run.inputs is not None and not is_erased(run.inputs):
        run.inputs = erased(run.inputs, now)
    if run.output_artifact is not None:  # nothing uses it any more
        run.output, run.output_artifact = mark, None
    elif run.output is not None and not is_erased(run.output):
        run.output = erased(run.output, now)
    run.error_message = run.step_error = ""
    run.erase_requested_at = run.erase_requested_at or now
    run.save(
        update_fields=[
            "inputs", "output", "output_artifact", "error_message", "step_error", "erase_requested_at",
        ]
    )  # fmt: skip
    for callback in callbacks_of(run):
        callback.body = body_without_data(callback.body)
        callback.save(update_fields=["body"])
    nodes = Node.objects.filter(run=run)
    nodes.update(settings={}, detail="", cache_key=None)
    nodes.exclude(output=None, output_artifact=None).update(output=mark, output_artifact=None)
    waits = Wait.objects.filter(node__run=run)
    waits.exclude(answer=None).update(answer=mark)
    waits.update(options={})
    MapChunk.objects.filter(node__run=run).delete()
    for event in RunEvent.objects.filter(Q(data__has_key="detail") | Q(data__has_key="error"), run=run):
        event.data = _without_texts(event.data)
        event.save(update_fields=["data"])


def _without_texts(data: dict[str, Any]) -> dict[str, Any]:
    """Return an event's data without the texts of errors, which may quote data."""
    kept = {name: value for name, value in data.items() if name != "detail"}
    if isinstance(kept.get("error"), dict):
        kept["error"] = {"code": kept["error"].get("code", ""), "message": ""}
    return kept
