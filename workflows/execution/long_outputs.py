"""Outputs of maps and runs that are too long for their rows: artifacts with their JSON.

They are stored before the transaction of the step, which writes the run's use of them: an artifact of a step
that does not count expires. References read them whole, as far as values may be long."""

from __future__ import annotations

import io
import json
from typing import Any

import structlog
from django.conf import settings

from artifacts.errors import ArtifactRefused
from artifacts.keep import HashedFile, keep_file
from artifacts.models import Artifact
from artifacts.refs import ref
from artifacts.store.contract import NoSuchObject, StoreError
from artifacts.uses import new_run_use
from jobs.domain.errors import ArtifactStoreOfOneHost
from jobs.ports import Ports
from jobs.submission.artifact_refs import require_one_host
from workflows.domain.budget import TOO_LARGE, OverBudget, measure
from workflows.execution.writes import Writes
from workflows.models import Node, Run

log = structlog.get_logger(__name__)

OUTPUT_NAME, OUTPUT_TYPE = "output.json", "application/json"
OUTPUT_GONE = "output_gone"
_LONGEST = 4
"""Most bytes of a value's JSON for each byte that it is measured to have: of control characters, escaped."""


def keep_long(run: Run, output: Any, writes: Writes, ports: Ports) -> str | None:
    """Store an output as an artifact if it is too long for a row, and add the run's use of it to the writes;
    return its id. None: it stays in the row, also while the store can't take it."""
    most = settings.DISPATCHER.inline_result_bytes
    if most <= 0 or measure(output, most).count <= most:
        return None
    file = HashedFile(io.BytesIO())
    file.add(json_of(output))
    try:
        require_one_host(ports)
        return keep_output(run, file, writes, ports)
    except (ArtifactRefused, ArtifactStoreOfOneHost, StoreError) as error:
        log.warning("long_output_kept_inline", run_id=run.id, error=str(error))
        return None


def json_of(output: Any) -> bytes:
    """Return the JSON of an output, as artifacts have it."""
    return json.dumps(output, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")


def keep_output(run: Run, file: HashedFile, writes: Writes, ports: Ports) -> str:
    """Store the JSON of an output as an artifact, and add the run's use of it to the writes; return its id.
    Raises ArtifactRefused, StoreError."""
    artifact = keep_file(
        file.done(media_type=OUTPUT_TYPE, name=OUTPUT_NAME),
        tenant_id=run.tenant_id,
        content_type=OUTPUT_TYPE,
        store=ports.artifact_store,
        now=ports.clock.now(),
    )
    writes.run_uses[run.id, artifact.pk] = new_run_use(run.id, artifact.pk)
    return artifact.pk


def read_long(artifact_id: str, ports: Ports) -> Any:
    """Return an output that is an artifact. Raises OverBudget if it was removed or is too long, and
    StoreError."""
    most = settings.DISPATCHER.workflow_value_bytes
    artifact = Artifact.objects.filter(pk=artifact_id, state=Artifact.State.STORED).first()
    try:
        if artifact is not None and artifact.bytes <= most * _LONGEST:
            found = json.loads(ports.artifact_store.read(artifact.key, 0, artifact.bytes))
            if measure(found, most).count <= most:
                return found
    except NoSuchObject:
        artifact = None
    if artifact is None:
        raise OverBudget(OUTPUT_GONE, f"the output is the artifact {artifact_id}, which was removed")
    raise OverBudget(
        TOO_LARGE,
        f"the output is an artifact of {artifact.bytes} bytes; references read parts of up to {most} "
        "(DISPATCHER_WORKFLOW_VALUE_BYTES). A reference to all of it selects the artifact",
        whole=ref(artifact_id),
    )


def is_stored(artifact_id: str) -> bool:
    """Return True if the artifact of an output is there."""
    return Artifact.objects.filter(pk=artifact_id, state=Artifact.State.STORED).exists()


def url_of(artifact_id: str | None) -> str | None:
    """Return the path of an output that is an artifact."""
    return None if artifact_id is None else f"/api/v1/artifacts/{artifact_id}"


def shown_output(row: Node | Run) -> Any:
    """Return the output in a row, or the reference to its artifact."""
    return row.output if row.output_artifact is None else ref(row.output_artifact)


def stored_output(row: Node | Run, ports: Ports) -> Any:
    """Return the output in a row, or in its artifact. Raises OverBudget, StoreError."""
    return row.output if row.output_artifact is None else read_long(row.output_artifact, ports)
