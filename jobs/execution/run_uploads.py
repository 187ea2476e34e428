"""Outputs that an HTTP GPU server uploads during a run: promised here, under the attempt's push token, and
put straight into the store. The worker makes those that the result names part of the run's end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Sum

from artifacts.errors import ArtifactTooLarge
from artifacts.keys import SHA256
from artifacts.models import Artifact, RunUpload
from artifacts.outputs import SavedOutput, reserve
from artifacts.refs import only_ref, ref
from artifacts.reservations import require_room
from artifacts.store.contract import SignedRequest, is_blocked
from artifacts.uploads import require_one_put
from jobs.domain.errors import AttemptOver, TooManyRunArtifacts
from jobs.execution.pushed_results import read_attempt
from jobs.models import Job
from jobs.ports import Ports

_OBJECT = re.compile(rf"/a/([1-9][0-9]{{0,18}})/({SHA256})(\?|\Z)")


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output as its GPU server describes it."""

    sha256: str
    bytes: int
    content_type: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class PromisedOutput:
    """artifact_id: for the result. upload: None if the store has the bytes already."""

    artifact_id: str
    upload: SignedRequest | None


def promise_output(job_id: str, attempt_id: str, wanted: WantedOutput, ports: Ports) -> PromisedOutput | None:
    """Promise an output of a running attempt; the same one again gets the same id.

    Returns None if the job does not exist or the attempt belongs to another job. Raises AttemptOver,
    TooManyRunArtifacts, TooManyRunOutputs, ArtifactTooLarge, ArtifactQuotaFull, BeingRemoved and
    StoreError.
    """
    found = read_attempt(job_id, attempt_id, ports)
    if found is None:
        return None
    if found.is_over:
        raise AttemptOver
    tenant_id, now = Job.objects.values_list("tenant_id", flat=True).get(id=job_id), ports.clock.now()
    limits, store = settings.DISPATCHER, ports.artifact_store
    if wanted.bytes > limits.max_artifact_bytes:
        raise ArtifactTooLarge(
            f"An artifact may have {limits.max_artifact_bytes} bytes (DISPATCHER_MAX_ARTIFACT_BYTES), not "
            f"{wanted.bytes}."
        )
    require_one_put(wanted.bytes, store, otherwise="name several smaller outputs in the result")
    row = RunUpload.objects.filter(attempt=attempt_id, sha256=wanted.sha256).first()
    if row is None:
        new = RunUpload(
            attempt=attempt_id,
            tenant_id=tenant_id,
            sha256=wanted.sha256,
            bytes=wanted.bytes,
            content_type=wanted.content_type,
            name=wanted.name,
            created_at=now,
        )
        row = _inserted(new, job_id)
    key = Artifact(tenant_id=tenant_id, sha256=row.sha256).key
    stored = store.find(key)
    if stored is not None and stored.bytes == row.bytes:
        return PromisedOutput(row.artifact, None)
    if stored is not None and is_blocked(stored):
        store.remove(key)
    return PromisedOutput(row.artifact, store.sign_put(key, row.bytes, limits.artifact_url_seconds))


def _inserted(new: RunUpload, job_id: str) -> RunUpload:
    """Insert an output, or return the same one that was promised meanwhile. Raises as `promise_output`."""
    with transaction.atomic():
        Job.objects.select_for_update().only("id").get(id=job_id)  # uploads of a run follow each other
        require_room_of_run(new.attempt, new.bytes)
        row, is_new = reserve(new, new.created_at)
    if is_new:
        require_room(row, new.created_at)
    return row


def require_room_of_run(attempt_id: str, size: int) -> None:
    """Raise TooManyRunArtifacts if an attempt may not promise an output of `size` bytes more."""
    limits = settings.DISPATCHER
    used = RunUpload.objects.filter(attempt=attempt_id).aggregate(count=Count("pk"), bytes=Sum("bytes"))
    if used["count"] >= limits.run_artifacts:
        raise TooManyRunArtifacts(
            f"A run may save {limits.run_artifacts} artifacts (DISPATCHER_RUN_ARTIFACTS)."
        )
    if (used["bytes"] or 0) + size > limits.run_artifact_bytes:
        raise TooManyRunArtifacts(
            f"The artifacts of a run may have {limits.run_artifact_bytes} bytes "
            f"(DISPATCHER_RUN_ARTIFACT_BYTES); they have {used['bytes'] or 0}, this one {size}."
        )


def with_uploads(result: Any, attempt_id: str) -> tuple[Any, list[SavedOutput]]:
    """Return the result with references in place of URLs of the attempt's uploads, and those that it names.
    Other references and URLs stay."""
    rows = list(RunUpload.objects.filter(attempt=attempt_id))
    if not rows:
        return result, []
    by_id = {row.artifact: row for row in rows}
    by_hash = {row.sha256: row for row in rows}
    named: dict[str, RunUpload] = {}

    def replaced(value: Any) -> Any:
        if type(value) is str:
            found = _OBJECT.search(value) if "/a/" in value else None
            row = by_hash.get(found[2]) if found and value.startswith(("http://", "https://")) else None
            if row is None:
                return value
            named[row.artifact] = row
            return ref(row.artifact)
        if type(value) is list:
            return [replaced(item) for item in value]
        if type(value) is not dict:
            return value
        if (row := by_id.get(only_ref(value) or "")) is not None:
            named[row.artifact] = row
            return value
        return {key: replaced(item) for key, item in value.items()}

    changed = replaced(result)
    outputs = [
        SavedOutput(row.artifact, row.sha256, row.bytes, row.content_type, row.name) for row in named.values()
    ]
    return changed, outputs
