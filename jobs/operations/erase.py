"""Erases a job's data: payload, result, outputs, log lines and messages go; the row, its times, its states
and the hashes of payload and result stay."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q

from artifacts.keys import SHA256
from artifacts.models import ArtifactUse
from artifacts.removal import erase_outputs, erase_unused, remove_erased
from foundation import json_text
from foundation.http_api.json_body import read_time
from foundation.json_text import canonical_json
from gpus.registry.audit import record
from jobs import transitions
from jobs.domain.errors import JobNotOver, JobOfRun
from jobs.domain.states import JobState, is_final
from jobs.models import Attempt, Callback, Event, Job, PushedResult
from jobs.ports import Ports
from jobs.submission.artifact_refs import require_host_of_files

ERASED = "$erased"
"""Name in a payload or result that was erased, with time and hash."""
_LONGEST_TIME = 40
_SHA256 = re.compile(SHA256)


def erase_job_data(job_id: str, *, ports: Ports, by: str | None = None, with_follower: bool = False) -> int:
    """Erase the data of a job that has ended; may be repeated. Return how many artifacts were erased with it:
    those that no other job uses.

    A dead letter is dismissed, since it can't run again. A callback that is still due is sent without the
    result. with_follower: the data of its follower (a run), which has copies, is erased too. Raises
    Job.DoesNotExist, JobNotOver, JobOfRun, and ArtifactStoreOfOneHost as a submit with files does.
    """
    now = ports.clock.now()
    with transaction.atomic():
        job = Job.objects.select_for_update().get(id=job_id)
        if job.followed_by is not None and not with_follower:
            run_id = job.followed_by.partition(":")[2]
            raise JobOfRun(
                f"The job belongs to the run {run_id}, which has copies of its data as inputs of other jobs. "
                f"DELETE /api/v1/runs/{run_id}/data erases all of them."
            )
        if not is_final(JobState(job.state)):
            raise JobNotOver()
        require_host_of_files(job.tenant_id, ports)  # else the rows go, and the files stay
        transitions.dismiss([job_id], now)
        if not is_erased(job.payload):
            job.payload = erased(job.payload, now)
        if job.result is not None and not is_erased(job.result):
            job.result = erased(job.result, now)
        job.metadata, job.error_message = {}, ""
        job.save(update_fields=["payload", "result", "metadata", "error_message"])
        Attempt.objects.filter(job_id=job_id).update(error_message="", evidence="")
        events = Event.objects.filter(job_id=job_id)
        events.filter(type="partial").update(data={"output_hidden": True})
        events.filter(type="log").update(data={"lines": []})
        texts = Q(data__has_key="error") | Q(data__has_key="text")
        for event in events.filter(texts).iterator():
            event.data = _without_texts(event.data)
            event.save(update_fields=["data"])
        for callback in Callback.objects.filter(job_id=job_id).iterator():
            callback.body = body_without_data(callback.body)
            callback.save(update_fields=["body"])
        artifacts = erase_artifacts([job_id], now)
        attempts = list(Attempt.objects.filter(job_id=job_id).values_list("pk", flat=True))
        outputs = erase_outputs(attempts, now)
        # by job: a push may have come for an attempt whose row was never written
        for pushed in PushedResult.objects.filter(job_id=job_id).iterator(chunk_size=1):
            # the status stays, so that the same push again is still answered as a repeated one
            pushed.body = {"status": pushed.body.get("status")}
            pushed.save(update_fields=["body"])
        record(by, "erase_job_data", f"job:{job_id}")
    remove_erased([*artifacts, *outputs], ports.artifact_store, now)
    return len(artifacts)


def erase_artifacts(job_ids: Sequence[str], now: datetime) -> list[str]:
    """Drop these jobs' uses of artifacts, inside a transaction, and make those gone that no other job uses;
    return their ids, for `remove_erased` after the commit."""
    uses = ArtifactUse.objects.filter(job__in=job_ids)
    artifacts = set(uses.values_list("artifact_id", flat=True))
    uses.delete()
    return erase_unused(artifacts, now)


def erased(value: Any, now: datetime) -> dict[str, Any]:
    """Return what stays of a value: when it was erased, and its hash."""
    digest = hashlib.sha256(canonical_json(value).encode()).hexdigest()
    return {ERASED: {"at": now.isoformat(), "sha256": digest}}


def is_erased(value: Any) -> bool:
    """Return True for what `erased` returns. A payload or a result may have such a key, and must not escape
    its erasure by it."""
    mark = value.get(ERASED) if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(mark, dict) or not {"at"} <= mark.keys() <= {"at", "sha256"}:
        return False
    at, digest = mark["at"], mark.get("sha256", "0" * 64)
    is_time = isinstance(at, str) and len(at) <= _LONGEST_TIME and read_time(at) is not None
    return is_time and isinstance(digest, str) and _SHA256.fullmatch(digest) is not None


def _code(error: Any) -> str:
    return str(error.get("code", "")) if isinstance(error, dict) else ""


def _without_texts(data: dict[str, Any]) -> dict[str, Any]:
    """Return an event's data without an error's message and a progress' text."""
    kept = {name: value for name, value in data.items() if name != "text"}
    return kept | {"error": {"code": _code(kept["error"]), "message": ""}} if "error" in kept else kept


def body_without_data(body: str) -> str:
    """Return a callback's body without what the job or run made or was given."""
    fields = json.loads(body)
    if "metadata" in fields:
        fields["metadata"] = {}
    for name in {"result", "output"} & fields.keys():
        fields[name] = None
    if "error" in fields:
        fields["error"] = {"code": _code(fields["error"]), "message": ""}
    return json_text.dumps(fields, sort_keys=True)
