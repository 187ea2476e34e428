"""Law 13, of artifacts: each reference that the product took for a final job or run resolves, and the bytes
have its hash. The references are searched for in payloads, results, inputs, answers, outputs and callbacks
themselves, also in those that are artifacts. A use must cover each, because only uses keep an artifact from
its removal.

A submit checks each reference of a payload. Anything may stand in the others: a reference in inputs or an
answer counts if the tenant had the artifact then, one in results, outputs and callbacks if it ever had, and
neither a definition nor such inputs brought it there. `docs/reference/artifacts.md` says so to tenants.

The bytes that count for a tenant are those of its artifacts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce

from artifacts.models import Artifact, ArtifactUse, ByteChange
from artifacts.refs import REF, only_ref
from artifacts.store.contract import NoSuchObject
from foundation.database import statements
from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import Callback, Job, Tenant
from jobs.ports import Ports
from workflows.domain.states import RunState
from workflows.execution.waits import CANCELLED_BY, EXPIRED_BY
from workflows.models import Node, Run, Version, Wait

_FINAL_JOBS = sorted(state.value for state in FINAL_JOB_STATES)
_FINAL_RUNS = sorted(state.value for state in RunState if state is not RunState.RUNNING)

_jobs = statements.Read(
    lambda: (
        Job.objects.order_by("id")
        .filter(state__in=_FINAL_JOBS)
        .values_list("id", "tenant_id", "payload", "result")
    )
)
_runs = statements.Read(
    lambda: (
        Run.objects.order_by("id")
        .filter(state__in=_FINAL_RUNS)
        .values_list("id", "tenant_id", "depth", "created_at", "inputs", "output", "output_artifact")
    )
)
_answers = statements.Read(
    lambda: (
        Wait.objects.order_by("node_id")
        .filter(node__run__state__in=_FINAL_RUNS)
        .exclude(answered_at=None)
        .exclude(answered_by__in=[EXPIRED_BY, CANCELLED_BY])
        .values_list("node__run_id", "node__key", "answered_at", "answer")
    )
)
_definitions = statements.Read(
    lambda: Version.objects.order_by("id").values_list("workflow__tenant_id", "spec")
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
    """References in a stored value. name: of the value, for people. job: the job whose own use must keep the
    artifacts; empty: a use of any job or run does."""

    name: str
    artifact_ids: Iterable[str]
    job: str = ""


class _Given(NamedTuple):
    """A value that a client gave to a run, at a time."""

    name: str
    tenant_id: int
    at: datetime
    value: Any


def check_artifacts(ports: Ports) -> Iterator[str]:
    """Yield violations. No job and no run has anything left to do."""
    yield from _counted_bytes()
    yield from _Check(ports).violations()


class _Check:
    """The references of all final jobs and runs, beside the artifacts and their uses.

    _unchecked: (tenant id, artifact id) of references that no request checked, as of `_never_taken`.
    """

    def __init__(self, ports: Ports) -> None:
        self._store = ports.artifact_store
        self._rows: dict[str, Artifact] = {row.pk: row for row in _rows()}
        self._uses = list(_uses())
        self._users = {(artifact_id, job) for artifact_id, job, *_ in self._uses}
        self._used = {artifact_id for artifact_id, _ in self._users}
        self._hashes: dict[str, str | None] = {}
        self._jobs, self._runs = _jobs(), _runs()
        self._tenant_of_job = {job_id: tenant_id for job_id, tenant_id, *_ in self._jobs}
        self._tenant_of_run = {run_id: tenant_id for run_id, tenant_id, *_ in self._runs}
        self._given = list(_given(self._runs))
        self._unchecked = self._never_taken(self._given)

    def violations(self) -> Iterator[str]:
        for document in self._documents():
            for artifact_id in dict.fromkeys(document.artifact_ids):
                yield from self._resolve(artifact_id, document)

    def _documents(self) -> Iterator[_Document]:
        yield from self._of_jobs()
        yield from self._of_runs()
        owners = self._tenant_of_job | {f"run:{run_id}": one for run_id, one in self._tenant_of_run.items()}
        for callback_id, job_id, subject, body in _callbacks():
            if (owner := owners.get(job_id or "", owners.get(subject))) is not None:
                yield _Document(f"the body of callback {callback_id}", self._had(owner, json.loads(body)))

    def _of_jobs(self) -> Iterator[_Document]:
        for job_id, tenant_id, payload, result in self._jobs:
            yield _Document(f"the payload of job {job_id}", _refs(payload), job_id)
            yield _Document(f"the result of job {job_id}", self._had(tenant_id, result), job_id)
        for artifact_id, job_id, _, is_result in self._uses:
            if job_id in self._tenant_of_job:
                yield _Document(f"a use by job {job_id}", [artifact_id], job_id)
                if is_result:
                    result = self._had(self._tenant_of_job[job_id], self._json(artifact_id))
                    yield _Document(f"the long result of job {job_id}", result, job_id)

    def _of_runs(self) -> Iterator[_Document]:
        for one in self._given:
            there = [ref for ref in _kept(one.value) if self._was_there(ref, one)]
            yield _Document(one.name, there)
        for run_id, tenant_id, depth, _, inputs, output, output_artifact in self._runs:
            if depth:
                yield _Document(f"the inputs of sub-run {run_id}", self._had(tenant_id, inputs))
            yield from self._output(f"the output of run {run_id}", tenant_id, output, output_artifact)
        for run_id, key, output, output_artifact in _nodes():
            name = f"the output of {key} of run {run_id}"
            yield from self._output(name, self._tenant_of_run[run_id], output, output_artifact)

    def _output(self, name: str, tenant_id: int, output: Any, artifact_id: str | None) -> Iterator[_Document]:
        yield _Document(name, self._had(tenant_id, output))
        if artifact_id is not None:
            yield _Document(name, [artifact_id])
            yield _Document(f"{name}, a long one,", self._had(tenant_id, self._json(artifact_id)))

    def _had(self, tenant_id: int, value: Any) -> Iterator[str]:
        """Yield the references in a value that are to artifacts which the tenant had at some time, without
        those that no request checked: a model and a definition may name any."""
        for artifact_id in _refs(value):
            row = self._rows.get(artifact_id)
            is_own = row is not None and row.tenant_id == tenant_id and row.stored_at is not None
            if is_own and (tenant_id, artifact_id) not in self._unchecked:
                yield artifact_id

    def _never_taken(self, given: Iterable[_Given]) -> set[tuple[int, str]]:
        """Return tenants with references that nothing keeps: those in definitions, and those in what clients
        gave to runs before the artifact was there."""
        found = {(tenant_id, one) for tenant_id, spec in _definitions() for one in _refs(spec)}
        for one in given:
            kept = {ref for ref in _kept(one.value) if self._was_there(ref, one)}
            found |= {(one.tenant_id, ref) for ref in _refs(one.value) if ref not in kept}
        return found

    def _was_there(self, artifact_id: str, given: _Given) -> bool:
        """Return True if the tenant had the artifact when it gave the value to its run."""
        row = self._rows.get(artifact_id)
        if row is None or row.tenant_id != given.tenant_id:
            return False
        if row.stored_at is None or row.stored_at > given.at:
            return False
        is_gone = row.state == Artifact.State.GONE
        return not is_gone or row.tombstoned_at is None or row.tombstoned_at > given.at

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


def _kept(value: Any) -> list[str]:
    """Return the ids of the artifacts that a run keeps for a value given to it; none if a reference can't be
    read, or there are too many."""
    found, waiting = list[str](), [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and REF in one:
            if (artifact_id := only_ref(one)) is None:
                return []
            found.append(artifact_id)
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found if len(found) <= settings.DISPATCHER.max_artifact_refs else []


def _given(runs: Iterable[tuple[Any, ...]]) -> Iterator[_Given]:
    """Yield the inputs of final runs, and the answers and signals that these and their sub-runs took."""
    owners: dict[str, int] = {}
    for run_id, tenant_id, depth, created_at, inputs, *_ in runs:
        owners[run_id] = tenant_id
        if not depth:
            yield _Given(f"the inputs of run {run_id}", tenant_id, created_at, inputs)
    for run_id, key, at, answer in _answers():
        yield _Given(f"the answer to {key} of run {run_id}", owners[run_id], at, answer)


def _counted_bytes() -> Iterator[str]:
    """Yield the tenants whose counted bytes are not those of their artifacts. One statement is one snapshot:
    sweeps may run meanwhile."""
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
