"""The record of artifacts: what clients uploaded, the rows, and the objects in the store. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from verification.proving.judge import Finding
from verification.proving.records import JobRow, Order

STORED = "stored"


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """An artifact as the database stores it. key: of its object."""

    id: str
    key: str
    state: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredArtifacts:
    """The dispatcher's records, after a garbage collection. rows: by id. uses: (job, artifact). objects:
    sizes in bytes by key. damaged: keys of objects with another hash. leftovers: what the store has beside
    objects."""

    rows: Mapping[str, ArtifactRow]
    uses: Collection[tuple[str, str]]
    objects: Mapping[str, int]
    damaged: Collection[str] = ()
    leftovers: Collection[str] = ()


def compare_artifacts(
    orders: Iterable[Order], jobs: Mapping[str, JobRow], stored: StoredArtifacts
) -> Iterator[Finding]:
    """Each file of an accepted job is there, and each that its run saved, whole; no object is half or
    unknown, and nothing else is left in the store."""
    for order in orders:
        if not order.artifact or not order.job_ids:
            continue
        row = stored.rows.get(order.artifact)
        if row is None:
            yield Finding("artifact_lost", f"its file {order.artifact} has no row", order.job_id)
            continue
        if (row.sha256, row.bytes) != (order.sha256, order.bytes):
            yield Finding("artifact_changed", f"its file {row.id} has other bytes", order.job_id)
        if (order.job_id, row.id) not in stored.uses:
            yield Finding("artifact_unused", f"its use of {row.id} is not stored", order.job_id)
        job = jobs.get(order.job_id)
        if job is not None and job.state == "completed":
            yield from _compare_output(job, stored)
    for row in stored.rows.values():
        if row.state == STORED and stored.objects.get(row.key) != row.bytes:
            found = stored.objects.get(row.key)
            yield Finding("half_object", f"artifact {row.id} of {row.bytes} bytes: the store has {found}")
    for key in sorted(stored.objects.keys() - {row.key for row in stored.rows.values()}):
        yield Finding("orphan", f"no row names the object {key}, after the garbage collection")
    for key in stored.damaged:
        yield Finding("damaged_object", f"the object {key} has other bytes than its key says")
    for name in stored.leftovers:
        yield Finding("leftover", f"{name} is left in the store, after the garbage collection")


def _compare_output(job: JobRow, stored: StoredArtifacts) -> Iterator[Finding]:
    row = stored.rows.get(job.output)
    if row is None or row.state != STORED:
        yield Finding("output_lost", f"the file {job.output!r} that its run saved is not stored", job.id)
    elif row.sha256 != job.output_sha256:
        yield Finding("output_changed", f"the file {row.id} that its run saved has other bytes", job.id)
    elif (job.id, row.id) not in stored.uses:
        yield Finding("output_unused", f"its use of the saved file {row.id} is not stored", job.id)
