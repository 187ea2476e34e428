"""The outputs that a run saves as artifacts: in memory while it runs, secured before its end is queued. Their
rows are written with the end (`jobs.transitions`). A run without outputs costs no statement and no question
to the store."""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import structlog
from django.conf import settings
from django.db import DatabaseError, connection

from artifacts.errors import ArtifactQuotaFull, BeingRemoved, TooManyRunOutputs
from artifacts.keys import SHA256, ObjectKey
from artifacts.outputs import Maker, OutputMissing, SavedOutput, Secured, new_output, secure
from artifacts.refs import MARK, REF, only_ref, rename_refs
from artifacts.store.contract import CHUNK_BYTES, StoreError, StoreFull, WrongBytes
from artifacts.uploads import SNIFFED_BYTES, recognised_type
from foundation.database.faults import Fault, fault_of
from foundation.json_text import JsonText, unwrap
from foundation.long_texts import LongTexts
from foundation.signed_urls import may_have_signatures
from gpus.errors import OutputNotStored, OutputRefused
from gpus.protocol import Lease, ModelSpec
from gpus.runners.base import SaveOutput
from jobs.domain.errors import ArtifactStoreOfOneHost
from jobs.execution.answer_files import AnswerFiles
from jobs.execution.echoed_urls import without_input_urls
from jobs.execution.group_commit import estimate_bytes
from jobs.execution.output_errors import OutputsUnavailable, OutputsUnrecorded
from jobs.execution.run_uploads import with_uploads
from jobs.ports import Ports
from jobs.submission.artifact_refs import require_one_host

log = structlog.get_logger()

RESULT_NAME, RESULT_TYPE = "result.json", "application/json"
"""Of an artifact that is the whole result of a job."""

_OBJECT = re.compile(rf"/a/[1-9][0-9]{{0,18}}/{SHA256}")
"""In the URL of an object in a store."""


class _OneHost(OutputRefused):
    """The store is a folder of one host, and processes on several hosts use it."""


@dataclass(frozen=True, slots=True)
class KeptResult:
    """A result as it is stored. outputs: those that become artifacts with it; None: none."""

    result: Any
    outputs: Secured | None = None


class RunOutputs:
    """The saved outputs of one attempt. Thread-safe.

    `save` is called during the run, `keep` once it has succeeded. Both may wait for the store.

    inline_bytes: a result with more bytes of JSON becomes an artifact; 0: none does. files: keeps the files
    in the result itself; None: it has none. has_inputs: the GPU server got signed URLs, which the result may
    name.
    """

    def __init__(
        self,
        lease: Lease,
        ports: Ports,
        *,
        inline_bytes: int = 0,
        files: AnswerFiles | None = None,
        has_inputs: bool = False,
    ) -> None:
        self._lease, self._ports, self._inline_bytes = lease, ports, inline_bytes
        self._files, self._has_inputs = files, has_inputs
        self._lock = threading.Lock()
        self._saved: dict[str, SavedOutput] = {}
        self._read = 0

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
        return self.add(self._stored(file, name=name, content_type=content_type))

    def _stored(
        self, file: BinaryIO, *, name: str, content_type: str, is_bounded: bool = True
    ) -> SavedOutput:
        """Store the bytes of a file. is_bounded: they count for the limits of a run."""
        self._require_one_host()
        digest, size = hashlib.sha256(), 0
        file.seek(0)
        first = file.read(SNIFFED_BYTES)
        file.seek(0)
        for chunk in _chunks(file):
            digest.update(chunk)
            size += len(chunk)
            if is_bounded:
                self._count_read(len(chunk), size)
        sha256 = digest.hexdigest()
        if is_bounded:
            with self._lock:
                self._require_room(sha256, size)
        tenant_id, now = int(self._lease.tenant), self._ports.clock.now()
        content_type = content_type or recognised_type(first)
        try:
            output = new_output(
                tenant_id,
                self._lease.attempt_id,
                sha256,
                size,
                content_type=content_type,
                name=name,
                now=now,
            )
            connection.close()  # not needed while the store reads the file
            file.seek(0)
            self._ports.artifact_store.write(ObjectKey(tenant_id, sha256), size, _chunks(file))
        except WrongBytes:
            raise OutputRefused("A file of the run changed while it was saved.") from None
        except (ArtifactQuotaFull, TooManyRunOutputs) as full:
            raise OutputRefused(str(full)) from None
        except (StoreError, BeingRemoved, DatabaseError) as error:
            raise _unavailable(error) from None
        return output

    def _require_one_host(self) -> None:
        """Raise _OneHost if the web might not see what this process writes into the store's folder."""
        try:
            require_one_host(self._ports)
        except ArtifactStoreOfOneHost as error:
            raise _OneHost(f"An output of the run was not stored. {error}") from None
        except DatabaseError as error:
            raise _unavailable(error) from None

    def add(self, output: SavedOutput) -> dict[str, str]:
        """Add an output whose object is in the store, or will be when the run has ended; return its
        reference. Raises OutputRefused."""
        with self._lock:
            self._require_room(output.sha256, output.bytes)
            return self._saved.setdefault(output.sha256, output).ref

    def _count_read(self, read: int, size: int) -> None:
        """Count bytes of a file of `size` bytes or more. Raises OutputRefused beyond what a run may save: a
        sparse file may be endless, one may grow, and thousands may have the same bytes."""
        limits = settings.DISPATCHER
        if size > limits.max_artifact_bytes:
            raise OutputRefused(
                f"An artifact may have {limits.max_artifact_bytes} bytes (DISPATCHER_MAX_ARTIFACT_BYTES), an "
                "output of the run has more."
            )
        with self._lock:
            self._read += read
            if self._read > limits.run_artifact_bytes + limits.max_artifact_bytes:
                raise OutputRefused(
                    f"The artifacts of a run may have {limits.run_artifact_bytes} bytes "
                    "(DISPATCHER_RUN_ARTIFACT_BYTES); its files have more."
                )

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

    def keep(
        self,
        result: Any,
        finish: Callable[[SaveOutput], Any] | None = None,
        *,
        is_last_try: bool = False,
        long_texts: LongTexts | None = None,
    ) -> KeptResult:
        """Return the result of the run as it is stored, with all outputs that the store has for sure.

        finish: saves the files that the result names, and returns it with references to them. It may be
        called again after OutputsUnavailable. is_last_try: a result that the store does not take stays in the
        job's row, however long it is. long_texts: for which the result has marks. Raises OutputRefused,
        OutputInvalid, OutputNotStored and RunFailed.
        """
        self._read = 0
        if finish is not None:
            result = finish(self.save)
        elif may_name_uploads(result):
            result = self._with_uploads(result)
        if self._has_inputs:
            result = self._without_input_urls(result)
        if self._files is not None:
            result = self._with_files(self._files, result, long_texts)
            if self._has_inputs and long_texts is not None:
                result = self._without_input_urls(result)
        saved = self.saved
        secured = self._secured(saved) if saved else None
        if secured is not None:
            pairs = zip(saved, secured.outputs, strict=True)
            names = {old.id: new.id for old, new in pairs if old.id != new.id}
            result = rename_refs(unwrap(result), names) if names else result
        text = _long_text(result, self._inline_bytes)
        if text is None:
            return KeptResult(result, secured)
        try:
            return self._kept_as_artifact(text, secured)
        except OutputsUnavailable as error:
            if not is_last_try:
                raise
            log.warning("long_result_kept_inline", job_id=self._lease.job_id, error=error.message)
            return KeptResult(result, secured)
        except _OneHost as error:
            log.warning("long_result_kept_inline", job_id=self._lease.job_id, error=error.message)
            return KeptResult(result, secured)

    def _with_files(self, files: AnswerFiles, result: Any, long_texts: LongTexts | None) -> Any:
        try:
            saved_types = {one.id: one.content_type for one in self.saved}
            return files.replaced(result, long_texts, self.save, saved_types)
        except DatabaseError as error:
            raise _unavailable(error) from None

    def _with_uploads(self, result: Any) -> Any:
        """Add the uploads of the run's server that the result names, and return it with references to them.
        Raises OutputRefused, OutputsUnavailable."""
        try:
            result, outputs = with_uploads(unwrap(result), self._lease.attempt_id)
            connection.close()
        except DatabaseError as error:
            raise _unavailable(error) from None
        for output in outputs:
            self.add(output)
        return result

    def _without_input_urls(self, result: Any) -> Any:
        if not may_have_signatures(result):
            return result
        try:
            result = without_input_urls(result, self._lease.job_id)
            connection.close()
        except DatabaseError as error:
            raise _unavailable(error) from None
        return result

    def _kept_as_artifact(self, text: str, others: Secured | None) -> KeptResult:
        """Store the text of a result. others: the outputs that it may refer to."""
        output = self._stored(
            io.BytesIO(text.encode()), name=RESULT_NAME, content_type=RESULT_TYPE, is_bounded=False
        )
        secured = self._secured([output])
        (of_result,) = secured.outputs
        if others is not None:
            mine = [one for one in others.outputs if one.sha256 != of_result.sha256]
            secured = others._replace(outputs=[*mine, of_result])
        return KeptResult(of_result.ref, secured._replace(result=of_result))

    def _secured(self, outputs: Sequence[SavedOutput]) -> Secured:
        """Secure these outputs. Raises as `keep`."""
        lease, now = self._lease, self._ports.clock.now()
        maker = Maker(lease.job_id, lease.attempt_id, lease.epoch)
        try:
            secured = secure(int(lease.tenant), outputs, maker, self._ports.artifact_store, now)
            connection.close()
        except OutputMissing as missing:
            raise OutputNotStored(f"An output of the run is missing. {missing}") from None
        except (StoreError, BeingRemoved, DatabaseError) as error:
            raise _unavailable(error) from None
        return Secured(secured, int(lease.tenant), now)


def inline_bytes_of(spec: ModelSpec, followed_by: str | None, default: int) -> int:
    """Return how many bytes a result in a job's row may have; 0: any number. Later steps of a workflow refer
    to parts of a result, so those of its jobs stay there. default: of models without a number of their
    own."""
    if followed_by:
        return 0
    return default if spec.inline_result_bytes is None else spec.inline_result_bytes


def _long_text(result: Any, most: int) -> str | None:
    """Return the result as compact JSON, in ASCII, if it has more than `most` bytes; None: it does not, or
    there is no limit."""
    if not most:
        return None
    if isinstance(result, JsonText):
        return result.text if len(result.text) > most else None
    # an estimate first: it ends early, and a character may take 12 bytes
    if estimate_bytes(result, most // 12) <= most // 12:
        return None
    text = JsonText.of(result).text
    return text if len(text) > most else None


def may_name_uploads(result: Any) -> bool:
    """Return True if a result has a reference, or the URL of an object in a store."""
    if isinstance(result, JsonText):
        return MARK.decode() in result.text or _OBJECT.search(result.text) is not None
    return next(_names(result), None) is not None


def _names(result: Any) -> Iterator[str]:
    """Yield ids and URLs in a result that may be of uploads."""
    waiting = [result]
    while waiting:
        one = waiting.pop()
        if type(one) is str:
            if "/a/" in one and _OBJECT.search(one):
                yield one
        elif type(one) is list:
            waiting += one
        elif isinstance(one, dict):
            if REF in one and (artifact_id := only_ref(one)) is not None:
                yield artifact_id
            else:
                waiting += one.values()


def _unavailable(error: Exception) -> OutputsUnavailable:
    """Return the error of a try that may be repeated. Texts of the database are left out."""
    if isinstance(error, StoreFull):
        return OutputsUnavailable(f"An output of the run could not be stored. {error}")
    if isinstance(error, DatabaseError):
        connection.close()
        if fault_of(error) is Fault.SCHEMA:  # unlike an outage, it may last
            log.error("outputs_refused_by_database", error=str(error).strip())
            return OutputsUnavailable(
                "The database refuses to record the outputs of the run: the worker's role lacks a right "
                "(deploy/least_rights/gpu_box.sql), or a migration is missing."
            )
        return OutputsUnrecorded("The outputs of the run could not be recorded: the database is away.")
    return OutputsUnavailable(f"The outputs of the run could not be stored. {error}")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
