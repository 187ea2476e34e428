"""The outputs that a run saves as artifacts: in memory while it runs, secured before its end is queued. Their
rows are written with the end (`jobs.transitions`). A run without outputs costs no statement and no question
to the store."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from django.conf import settings
from django.db import DatabaseError, connection

from artifacts.errors import ArtifactQuotaFull, BeingRemoved
from artifacts.keys import ObjectKey
from artifacts.outputs import Maker, OutputMissing, SavedOutput, Secured, new_output, secure
from artifacts.refs import rename_refs
from artifacts.store.contract import CHUNK_BYTES, StoreError, StoreFull, WrongBytes
from artifacts.uploads import SNIFFED_BYTES, recognised_type
from foundation.json_text import unwrap
from gpus.errors import OutputNotStored, OutputRefused
from gpus.protocol import Lease
from jobs.ports import Ports


class OutputsUnavailable(OutputNotStored):
    """The store or the database did not answer; another try may succeed.

    is_bounded: a run that has ended waits for some time only; False: as long as its end could not be written
    anyway.
    """

    is_bounded = True


class OutputsUnrecorded(OutputsUnavailable):
    """The database did not answer."""

    is_bounded = False


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A result as it is stored. outputs: those that become artifacts with it; None: none."""

    result: Any
    outputs: Secured | None = None


class RunOutputs:
    """The saved outputs of one attempt. Thread-safe.

    `save` is called during the run, `keep` once it has succeeded. Both may wait for the store.
    """

    def __init__(self, lease: Lease, ports: Ports) -> None:
        self._lease, self._ports = lease, ports
        self._lock = threading.Lock()
        self._saved: dict[str, SavedOutput] = {}

    @property
    def saved(self) -> list[SavedOutput]:
        """Return what was saved so far."""
        with self._lock:
            return list(self._saved.values())

    def save(self, file: BinaryIO, *, name: str = "", content_type: str = "") -> dict[str, str]:
        """Store the bytes of a file from its beginning, and return the reference to them for the result.

        file: can seek; must not change meanwhile. content_type: "": recognised from the first bytes. The
        bytes are read twice, in pieces, and never held whole. Raises OutputRefused, OutputsUnavailable.
        """
        digest, size = hashlib.sha256(), 0
        file.seek(0)
        first = file.read(SNIFFED_BYTES)
        file.seek(0)
        for chunk in _chunks(file):
            digest.update(chunk)
            size += len(chunk)
        sha256 = digest.hexdigest()
        with self._lock:
            self._require_room(sha256, size)
        tenant_id, now = int(self._lease.tenant), self._ports.clock.now()
        try:
            output = new_output(
                tenant_id,
                sha256,
                size,
                content_type=content_type or recognised_type(first),
                name=name,
                now=now,
            )
            connection.close()  # not needed while the store reads the file
            file.seek(0)
            self._ports.artifact_store.write(ObjectKey(tenant_id, sha256), size, _chunks(file))
        except WrongBytes:
            raise OutputRefused("A file of the run changed while it was saved.") from None
        except (StoreError, BeingRemoved, DatabaseError) as error:
            raise _unavailable(error) from None
        return self.add(output)

    def add(self, output: SavedOutput) -> dict[str, str]:
        """Add an output whose object is in the store, or will be when the run has ended; return its
        reference. Raises OutputRefused."""
        with self._lock:
            self._require_room(output.sha256, output.bytes)
            return self._saved.setdefault(output.sha256, output).ref

    def _require_room(self, sha256: str, size: int) -> None:
        """Raise OutputRefused if the run may not save so many more bytes."""
        if sha256 in self._saved:
            return
        limits = settings.DISPATCHER
        if len(self._saved) >= limits.run_artifacts:
            raise OutputRefused(
                f"A run may save {limits.run_artifacts} artifacts (DISPATCHER_RUN_ARTIFACTS)."
            )
        used = sum(one.bytes for one in self._saved.values())
        if size > limits.max_artifact_bytes:
            raise OutputRefused(
                f"An artifact may have {limits.max_artifact_bytes} bytes (DISPATCHER_MAX_ARTIFACT_BYTES), an "
                f"output of the run has {size}."
            )
        if used + size > limits.run_artifact_bytes:
            raise OutputRefused(
                f"The artifacts of a run may have {limits.run_artifact_bytes} bytes "
                f"(DISPATCHER_RUN_ARTIFACT_BYTES); they have {used}, and the next one {size}."
            )

    def keep(self, result: Any) -> KeptResult:
        """Return the result of the run as it is stored, with all outputs that the store has for sure.

        It may be called again after OutputsUnavailable. Raises OutputRefused, OutputNotStored.
        """
        outputs = self.saved
        if not outputs:
            return KeptResult(result)
        lease, now = self._lease, self._ports.clock.now()
        maker = Maker(lease.job_id, lease.attempt_id, lease.epoch)
        try:
            secured = secure(int(lease.tenant), outputs, maker, self._ports.artifact_store, now)
            connection.close()
        except OutputMissing as missing:
            raise OutputNotStored(f"An output of the run is missing. {missing}") from None
        except ArtifactQuotaFull as full:
            raise OutputRefused(str(full)) from None
        except (StoreError, BeingRemoved, DatabaseError) as error:
            raise _unavailable(error) from None
        names = {old.id: new.id for old, new in zip(outputs, secured, strict=True) if old.id != new.id}
        if names:
            result = rename_refs(unwrap(result), names)
        return KeptResult(result, Secured(secured, int(lease.tenant), now))


def _unavailable(error: Exception) -> OutputsUnavailable:
    """Return the error of a try that may be repeated. Texts of the database are left out."""
    if isinstance(error, StoreFull):
        return OutputsUnavailable(f"An output of the run could not be stored. {error}")
    if isinstance(error, DatabaseError):
        connection.close()
        return OutputsUnrecorded("The outputs of the run could not be recorded: the database is away.")
    return OutputsUnavailable(f"The outputs of the run could not be stored. {error}")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
