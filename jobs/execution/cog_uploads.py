"""Files that a Cog container uploads at the end of a prediction, before its webhook. They are uploads of the
attempt like those that other servers promise (`run_uploads`), but the bytes come through the dispatcher: Cog
sends each file whole to one fixed address, with the prediction's id in a header."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, cast

from django.conf import settings

from artifacts.errors import ArtifactTooLarge
from artifacts.keep import LocalFile
from artifacts.keys import ObjectKey
from artifacts.media_types import type_of
from foundation.database import statements
from foundation.database.statements import value
from jobs.domain.errors import AttemptOver
from jobs.execution.pushed_results import read_attempt
from jobs.execution.run_uploads import WantedOutput, promise_output
from jobs.models import Attempt
from jobs.ports import Ports

_ROW_SECONDS = 5.0
_ROW_PAUSE = 0.05
_attempt = statements.Read(
    lambda: Attempt.objects.filter(id=value(Attempt, "id")).values("job_id", "server", "job__tenant_id")
)


@dataclass(frozen=True, slots=True)
class CogUpload:
    """An upload that may be read. length: bytes."""

    job_id: str
    attempt_id: str
    tenant_id: int
    length: int


def admit_upload(server: str, attempt_id: str, length: int, ports: Ports) -> CogUpload | None:
    """Decide whether a file is read, before its bytes are. server: that sends it.

    Returns None if this server does not run such an attempt. Raises AttemptOver and ArtifactTooLarge.
    """
    row = _row_of(attempt_id)
    if row is None or row["server"] != server:
        return None
    known = read_attempt(row["job_id"], attempt_id, ports)
    if known is None:
        return None
    if known.is_over:
        raise AttemptOver
    most = settings.DISPATCHER.max_artifact_bytes
    if length > most:
        raise ArtifactTooLarge(
            f"An artifact may have {most} bytes (DISPATCHER_MAX_ARTIFACT_BYTES), not {length}."
        )
    return CogUpload(row["job_id"], attempt_id, row["job__tenant_id"], length)


def keep_upload(upload: CogUpload, file: LocalFile, ports: Ports) -> str:
    """Store a file as an upload of its attempt; return the URL that stands for it in the result.

    Raises AttemptOver, TooManyRunArtifacts, ArtifactQuotaFull, BeingRemoved and StoreError.
    """
    wanted = WantedOutput(file.sha256, file.length, type_of(file.head(), file.media_type) or "", file.name)
    promised = promise_output(upload.job_id, upload.attempt_id, wanted, ports)
    if promised is None:
        raise AttemptOver
    key = ObjectKey(upload.tenant_id, file.sha256)
    if promised.upload is not None:
        ports.artifact_store.write(key, file.length, file.chunks())
    return f"{settings.DISPATCHER.public_url.rstrip('/')}/{key}"


def _row_of(attempt_id: str) -> dict[str, Any] | None:
    """Return the attempt's row, for which a short prediction may have to wait: it is committed together with
    other starts while the prediction runs."""
    until = time.monotonic() + _ROW_SECONDS
    while (row := _attempt.first(id=attempt_id)) is None and time.monotonic() < until:
        time.sleep(_ROW_PAUSE)
    return cast("dict[str, Any] | None", row)
