"""The output of a map that is too large to be a value is written to an artifact, a few items at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.conf import settings

from artifacts.errors import ArtifactRefused, ArtifactTooLarge
from artifacts.keep import HashedFile
from artifacts.models import Artifact
from artifacts.store.contract import NoSuchObject
from jobs.domain.errors import ArtifactStoreOfOneHost
from jobs.models import Job
from jobs.ports import Ports
from jobs.submission.artifact_refs import require_one_host
from workflows.domain.budget import OverBudget
from workflows.domain.states import NodeState
from workflows.execution.long_outputs import OUTPUT_GONE, json_of, keep_output
from workflows.execution.scope import completed_children
from workflows.execution.writes import Writes
from workflows.models import MapState, Node, Run

NOT_STORED = "output_not_stored"
BATCH = 20
"""Outputs in memory at once."""


class _Child(NamedTuple):
    node_id: str
    job_id: str | None
    artifact: str | None
    output: Any = None
    """Of one that is not written yet."""


def keep_joined(run: Run, state: MapState, ended: Iterable[Node], writes: Writes, ports: Ports) -> str:
    """Store the list of the outputs of a map's children; return the id of its artifact. ended: children
    whose ends are not written yet. Raises OverBudget, StoreError."""
    try:
        require_one_host(ports)
        with tempfile.TemporaryFile() as temporary:
            file, most = HashedFile(temporary), settings.DISPATCHER.max_artifact_bytes
            for piece in _pieces(run, state, ended, ports):
                file.add(piece)
                if file.bytes > most:
                    raise ArtifactTooLarge(f"It has more than {most} bytes (DISPATCHER_MAX_ARTIFACT_BYTES).")
            return keep_output(run, file, writes, ports)
    except (ArtifactRefused, ArtifactStoreOfOneHost) as error:
        raise OverBudget(
            NOT_STORED,
            f"it has more than {settings.DISPATCHER.workflow_value_bytes} bytes "
            f"(DISPATCHER_WORKFLOW_VALUE_BYTES), and could not be kept as an artifact: {error} All items "
            "keep their results: restart the run to join them again",
        ) from None


def _pieces(run: Run, state: MapState, ended: Iterable[Node], ports: Ports) -> Iterator[bytes]:
    """Yield the JSON of the list. A child that did not complete has null."""
    stored = completed_children(run, state.node.base, state.first_round)
    children = {
        index: _Child(node_id, job_id, artifact)
        for index, node_id, job_id, artifact in stored.values_list(
            "index", "id", "job_id", "output_artifact"
        ).iterator()
    }
    for node in ended:
        if node.state == NodeState.COMPLETED and node.index is not None:
            children[node.index] = _Child(node.id, node.job_id, node.output_artifact, node.output)
    opening = b"["
    for first in range(0, state.total, BATCH):
        found = [children.get(index) for index in range(first, min(first + BATCH, state.total))]
        outputs = _outputs([child for child in found if child is not None])
        for child in found:
            yield opening
            opening = b","
            if child is None:
                yield b"null"
            elif child.artifact is not None:
                yield from _bytes_of(child.artifact, ports)
            else:
                output = child.output if child.output is not None else outputs.get(child.node_id)
                yield json_of(output)
    yield b"[]" if opening == b"[" else b"]"


def _outputs(children: list[_Child]) -> dict[str, Any]:
    """Return the stored outputs by node id."""
    jobs = {child.job_id: child.node_id for child in children if child.job_id is not None}
    results = Job.objects.filter(id__in=list(jobs)).values_list("id", "result")
    found = {jobs[job_id]: result for job_id, result in results}
    others = [child.node_id for child in children if child.job_id is None]
    return found | dict(Node.objects.filter(id__in=others).values_list("id", "output"))


def _bytes_of(artifact_id: str, ports: Ports) -> Iterator[bytes]:
    artifact = Artifact.objects.filter(pk=artifact_id, state=Artifact.State.STORED).first()
    try:
        if artifact is not None:
            yield from ports.artifact_store.chunks(artifact.key, 0)
            return
    except NoSuchObject:
        pass
    raise OverBudget(OUTPUT_GONE, f"the output is the artifact {artifact_id}, which was removed")
