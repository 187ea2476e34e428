"""Law 13, of artifacts: each reference that is stored of a final job or run resolves, and the bytes have its
hash. The references are searched for in payloads, results, inputs, outputs and callbacks themselves, also in
those that are artifacts. A use must cover each, because only uses keep an artifact from its removal.

The bytes that count for a tenant are those of its artifacts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db.models import OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce

from artifacts.models import Artifact, ArtifactUse, ByteChange
from artifacts.refs import only_ref
from artifacts.store.contract import NoSuchObject
from foundation.database import statements
from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import Callback, Job, Tenant
from jobs.ports import Ports
from workflows.domain.states import RunState
from workflows.models import Node, Run

_FINAL_JOBS = sorted(state.value for state in FINAL_JOB_STATES)
_FINAL_RUNS = sorted(state.value for state in RunState if state is not RunState.RUNNING)

_jobs = statements.Read(
    lambda: Job.objects.order_by("id").filter(state__in=_FINAL_JOBS).values_list("id", "payload", "result")
)
_runs = statements.Read(
    lambda: (
        Run.objects.order_by("id")
        .filter(state__in=_FINAL_RUNS)
        .values_list("id", "created_at", "inputs", "output", "output_artifact")
    )
)
_nodes = statements.Read(
    lambda: (
        Node.objects.order_by("id")
        .filter(run__state__in=_FINAL_RUNS)
        .exclude(output=None, output_artifact=None)
        .values_list("run_id", "key", "output", "output_artifact")
    )
)
_callbacks = statements.Read(
    lambda: Callback.objects.order_by("id").values_list("id", "job_id", "subject", "body")
)
_rows = statements.Read(lambda: Artifact.objects.order_by("id"))
_uses = statements.Read(
    lambda: ArtifactUse.objects.order_by("id").values_list("artifact_id", "job", "run", "is_result")
)


class _Document(NamedTuple):
    """A stored value. name: for people. job: the job whose own use must keep what the value refers to; empty:
    a use of any job or run does."""

    name: str
    value: Any
    job: str = ""


def check_artifacts(ports: Ports) -> Iterator[str]:
    """Yield violations. No job and no run has anything left to do."""
    yield from _counted_bytes()
    yield from _Check(ports).violations()


class _Check:
    def __init__(self, ports: Ports) -> None:
        self._store = ports.artifact_store
        self._rows: dict[str, Artifact] = {row.pk: row for row in _rows()}
        self._uses = list(_uses())
        self._users = {(artifact_id, job) for artifact_id, job, *_ in self._uses}
        self._used = {artifact_id for artifact_id, _ in self._users}
        self._hashes: dict[str, str | None] = {}

    def violations(self) -> Iterator[str]:
        for document in self._documents():
            for artifact_id in dict.fromkeys(_refs(document.value)):
                yield from self._resolve(artifact_id, document)

    def _documents(self) -> Iterator[_Document]:
        jobs = _jobs()
        final = {job_id for job_id, *_ in jobs}
        for job_id, payload, result in jobs:
            yield _Document(f"the payload of job {job_id}", payload, job_id)
            yield _Document(f"the result of job {job_id}", result, job_id)
        for artifact_id, job_id, _, is_result in self._uses:
            if job_id in final:
                yield _Document(f"a use by job {job_id}", {"$artifact": artifact_id}, job_id)
                if is_result:
                    yield _Document(f"the long result of job {job_id}", self._json(artifact_id), job_id)
        runs = _runs()
        for run_id, created_at, inputs, output, output_artifact in runs:
            there = [one for one in _refs(inputs) if self._was_there(one, created_at)]
            yield _Document(f"the inputs of run {run_id}", [{"$artifact": one} for one in there])
            yield from self._output(f"the output of run {run_id}", output, output_artifact)
        for run_id, key, output, output_artifact in _nodes():
            yield from self._output(f"the output of {key} of run {run_id}", output, output_artifact)
        ended = {f"run:{run_id}" for run_id, *_ in runs}
        for callback_id, job_id, subject, body in _callbacks():
            if job_id in final or subject in ended:
                yield _Document(f"the body of callback {callback_id}", json.loads(body))

    def _output(self, name: str, output: Any, artifact_id: str | None) -> Iterator[_Document]:
        yield _Document(name, output)
        if artifact_id is not None:
            yield _Document(name, {"$artifact": artifact_id})
            yield _Document(f"{name}, a long one,", self._json(artifact_id))

    def _was_there(self, artifact_id: str, at: Any) -> bool:
        """Return True if the artifact could be used then: a run may start with references to others."""
        row = self._rows.get(artifact_id)
        if row is None or row.stored_at is None or row.stored_at > at:
            return False
        return row.tombstoned_at is None or row.state != Artifact.State.GONE or row.tombstoned_at > at

    def _resolve(self, artifact_id: str, document: _Document) -> Iterator[str]:
        named = f"(13) {document.name} refers to artifact {artifact_id}"
        row = self._rows.get(artifact_id)
        is_used = (artifact_id, document.job) in self._users if document.job else artifact_id in self._used
        if row is None:
            yield f"{named}, which does not exist"
        elif not is_used:
            yield f"{named}, and has no use of it"
        elif row.state != Artifact.State.STORED:
            yield f"{named}, which is {row.state}"
        elif (digest := self._hash(row)) is None:
            yield f"{named}, of which the store has no object"
        elif digest != row.sha256:
            yield f"{named}, whose object has other bytes"

    def _hash(self, row: Artifact) -> str | None:
        """Return the hash of the stored bytes; None if there is no object."""
        if row.pk not in self._hashes:
            digest = hashlib.sha256()
            try:
                for chunk in self._store.chunks(row.key):
                    digest.update(chunk)
                self._hashes[row.pk] = digest.hexdigest()
            except NoSuchObject:
                self._hashes[row.pk] = None
        return self._hashes[row.pk]

    def _json(self, artifact_id: str) -> Any:
        """Return the value in an artifact; None if it is not whole, which the reference to it shows."""
        row = self._rows.get(artifact_id)
        if row is None or row.state != Artifact.State.STORED or self._hash(row) != row.sha256:
            return None
        return json.loads(b"".join(self._store.chunks(row.key)))


def _refs(value: Any) -> Iterator[str]:
    """Yield the ids of all artifacts that a JSON value refers to."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if (artifact_id := only_ref(one)) is not None:
            yield artifact_id
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _counted_bytes() -> Iterator[str]:
    """One statement, hence one snapshot: sweeps may go on."""
    live = Artifact.objects.filter(tenant_id=OuterRef("pk"), removed_at=None)
    changes = ByteChange.objects.filter(tenant_id=OuterRef("pk"))
    sums = [
        Coalesce(Subquery(rows.values("tenant_id").annotate(sum=Sum("bytes")).values("sum")), 0)
        for rows in (live, changes)
    ]
    for name, has, counted in Tenant.objects.annotate(has=sums[0], counted=sums[1]).values_list(
        "name", "has", "counted"
    ):
        if has != counted:
            yield f"(13) the artifacts of {name} have {has} bytes, and {counted} are counted"
