"""Files that a Cog container uploads at the end of a prediction, before its webhook. They are uploads of the
attempt like those that other servers promise (`run_uploads`), but the bytes come through the dispatcher: Cog
sends each file whole to one fixed address, with the prediction's id in a header."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from artifacts.errors import ArtifactTooLarge
from artifacts.keep import LocalFile
from artifacts.keys import ObjectKey
from artifacts.media_types import type_of
from artifacts.models import Artifact, RunUpload
from artifacts.reservations import Used, check_room
from foundation.database import statements
from foundation.database.statements import value
from jobs.domain.errors import AttemptOver
from jobs.execution.pushed_results import read_attempt
from jobs.execution.run_uploads import WantedOutput, promise_output, require_room_of_run
from jobs.models import Attempt
from jobs.ports import Ports

_attempt = statements.Read(
    lambda: Attempt.objects.filter(id=value(Attempt, "id")).values("job_id", "server", "job__tenant_id")
)


@dataclass(frozen=True, slots=True)
class CogAttempt:
    """The attempt of a prediction. server: where it runs."""

    id: str
    job_id: str
    tenant_id: int
    server: str


def find_attempt(attempt_id: str) -> CogAttempt | None:
    """Return an attempt; None if it is not known. A short prediction may end before its start is committed:
    then it is known a little later."""
    row = _attempt.first(id=attempt_id)
    if row is None:
        return None
    return CogAttempt(attempt_id, row["job_id"], row["job__tenant_id"], row["server"])


def admit_upload(attempt: CogAttempt, length: int, ports: Ports, *, arriving: Used) -> None:
    """Decide whether a file of so many bytes is read.

    arriving: files of the attempt that are being read already. Raises AttemptOver, ArtifactTooLarge,
    TooManyRunArtifacts, TooManyRunOutputs and ArtifactQuotaFull.
    """
    known = read_attempt(attempt.job_id, attempt.id, ports)
    if known is None or known.is_over:
        raise AttemptOver
    most = settings.DISPATCHER.max_artifact_bytes
    if length > most:
        raise ArtifactTooLarge(
            f"An artifact may have {most} bytes (DISPATCHER_MAX_ARTIFACT_BYTES), not {length}."
        )
    if _may_be_known(attempt, length):
        return  # decided by its hash, in `keep_upload`
    size = arriving.bytes + length
    require_room_of_run(attempt.id, size)
    check_room(attempt.tenant_id, Used(arriving.outputs + 1, size), ports.clock.now())


def _may_be_known(attempt: CogAttempt, length: int) -> bool:
    """Return True if a file of this length may be one that takes no further room: a repeated upload, or the
    content of an artifact."""
    if RunUpload.objects.filter(attempt=attempt.id, bytes=length).exists():
        return True
    states = (Artifact.State.PROMISED, Artifact.State.STORED)
    same = Artifact.objects.filter(
        tenant_id=attempt.tenant_id, state__in=states, bytes=length, removed_at=None
    )
    return same.exists()


def keep_upload(attempt: CogAttempt, file: LocalFile, ports: Ports) -> str:
    """Store a file as an upload of its attempt; return the URL that stands for it in the result.

    Raises AttemptOver, TooManyRunArtifacts, TooManyRunOutputs, ArtifactQuotaFull, BeingRemoved and
    StoreError.
    """
    wanted = WantedOutput(file.sha256, file.length, type_of(file.head(), file.media_type) or "", file.name)
    promised = promise_output(attempt.job_id, attempt.id, wanted, ports)
    if promised is None:
        raise AttemptOver
    key = ObjectKey(attempt.tenant_id, file.sha256)
    if promised.upload is not None:
        ports.artifact_store.write(key, file.length, file.chunks())
    return f"{settings.DISPATCHER.public_url}/{key}"
