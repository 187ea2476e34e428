"""Maps over an artifact of JSON lines: the file is read in steps before the first child starts, so that a bad
line fails the map before any GPU runs; later each step reads the items that it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings

from artifacts.media_types import bare
from artifacts.models import Artifact
from artifacts.store.contract import NoSuchObject
from jobs.ports import Ports
from workflows.domain.values import TOO_MANY_ITEMS
from workflows.execution.json_lines import (
    GROUP,
    MEDIA_TYPES,
    BadLine,
    Scan,
    TooManyLines,
    items_from,
)
from workflows.models import MapFile

BAD_LINE, NOT_JSON_LINES, ARTIFACT_GONE = "bad_line", "not_json_lines", "artifact_gone"


class FileFault(ValueError):
    """A file can't be the list of a map. code: of the node that fails."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


def check_file(artifact_id: str, tenant_id: int) -> None:
    """Check that an artifact may be the list of a map. Raises FileFault."""
    artifact = _stored(artifact_id, tenant_id)
    if bare(artifact.content_type) not in MEDIA_TYPES:
        raise FileFault(
            NOT_JSON_LINES,
            f"the artifact {artifact_id} is of the type {artifact.content_type[:80] or 'unknown'}; a map "
            "takes application/jsonl or application/x-ndjson: one JSON value per line",
        )


def read_on(file: MapFile, ports: Ports) -> None:
    """Read the next part of the file of a map. Raises FileFault, StoreError."""
    limits = settings.DISPATCHER
    starts = [(at, line) for at, line in file.starts]
    scan = Scan(file.offset, file.line, file.items, starts)
    try:
        scan.read_on(
            _chunks(file, file.offset, ports),
            most_items=limits.workflow_map_items,
            most_line_bytes=limits.workflow_line_bytes,
        )
    except TooManyLines:
        raise FileFault(
            TOO_MANY_ITEMS,
            f"a map may have up to {limits.workflow_map_items} items (DISPATCHER_WORKFLOW_MAP_ITEMS), and "
            f"the artifact {file.artifact} has more; split it over several runs",
        ) from None
    except BadLine as error:
        raise _bad_line(file, error) from None
    file.offset, file.line, file.items = scan.offset, scan.line, scan.items
    file.starts, file.is_read = [list(one) for one in scan.starts], scan.is_over


def items_of(file: MapFile, indices: Sequence[int], ports: Ports) -> dict[int, Any]:
    """Return the items at these places, which ascend. Raises FileFault, StoreError."""
    found: dict[int, Any] = {}
    groups: dict[int, list[int]] = {}
    for index in indices:
        groups.setdefault(index // GROUP, []).append(index)
    for number, group in groups.items():
        offset, line = file.starts[number]
        try:
            some = items_from(
                _chunks(file, offset, ports),
                (offset, line),
                group[0],
                group[-1],
                most_line_bytes=settings.DISPATCHER.workflow_line_bytes,
            )
        except BadLine as error:  # it was readable before
            raise _bad_line(file, error) from None
        found |= {index: some[index] for index in group if index in some}
    return found


def _bad_line(file: MapFile, error: BadLine) -> FileFault:
    return FileFault(BAD_LINE, f"the artifact {file.artifact}, {error}")


def _chunks(file: MapFile, first: int, ports: Ports) -> Any:
    """Yield the bytes from a place. Raises FileFault, StoreError."""
    artifact = _stored(file.artifact, None)
    if first >= artifact.bytes:
        return
    try:
        yield from ports.artifact_store.chunks(artifact.key, first)
    except NoSuchObject:
        raise _gone(file.artifact) from None


def _stored(artifact_id: str, tenant_id: int | None) -> Artifact:
    rows = Artifact.objects.filter(pk=artifact_id, state=Artifact.State.STORED)
    found = (rows if tenant_id is None else rows.filter(tenant_id=tenant_id)).first()
    if found is None:
        raise _gone(artifact_id)
    return found


def _gone(artifact_id: str) -> FileFault:
    return FileFault(ARTIFACT_GONE, f"the artifact {artifact_id} is not there, or was removed")
