"""The record of artifacts: what clients uploaded, the rows, and the objects in the store. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from verification.proving.judge import Finding
from verification.proving.records import Order

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
    """The dispatcher's records. rows: by id. uses: (job, artifact). objects: sizes in bytes by key; after the
    removal of objects that no row knows."""

    rows: Mapping[str, ArtifactRow]
    uses: Collection[tuple[str, str]]
    objects: Mapping[str, int]


def compare_artifacts(orders: Iterable[Order], stored: StoredArtifacts) -> Iterator[Finding]:
    """Each file of an accepted job is there, whole, and no object is half or unknown."""
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
    for row in stored.rows.values():
        if row.state == STORED and stored.objects.get(row.key) != row.bytes:
            found = stored.objects.get(row.key)
            yield Finding("half_object", f"artifact {row.id} of {row.bytes} bytes: the store has {found}")
    for key in sorted(stored.objects.keys() - {row.key for row in stored.rows.values()}):
        yield Finding("orphan", f"no row knows the object {key}, after the removal of unknown objects")
