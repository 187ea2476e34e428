"""A submit as a form (`multipart/form-data`): the part `job` is the JSON body, the others are its files.

Django's parser splits the body, which was received whole before. The files go to temporary files on their way
to the store, and their hashes are computed as they come; only the part `job` is held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any

from django.conf import settings
from django.http.multipartparser import (
    FIELD,
    FILE,
    ChunkIter,
    InputStreamExhausted,
    LazyStream,
    MultiPartParserError,
    Parser,
)
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from artifacts.keep import HashedFile, LocalFile
from foundation.http_api.json_body import expect_body, read_json, too_large
from foundation.http_api.problems import FieldError, Problem, validation_problem

FORM = "multipart/form-data"
JOB = "job"
"""Name of the part with the body of the submit."""
_IN_MEMORY_BYTES = 256 * 1024
_PIECE_BYTES = 256 * 1024
_TAIL_BYTES = 4096
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^;,\s]{1,70}))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SubmitForm:
    """A parsed form. job: the JSON value of its part `job`. files: the others, by name; None: the body is
    that value itself, and no form."""

    job: Any
    files: Mapping[str, LocalFile] | None

    def close(self) -> None:
        """Remove the temporary files."""
        for one in (self.files or {}).values():
            one.file.close()


def is_form(request: Request) -> bool:
    """Return True for a form, by its Content-Type."""
    return str(request.META.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower() == FORM


class SubmitFormParser(BaseParser):
    """Parses a form to a `SubmitForm` for `request.data`. The view has `max_body_bytes`, and
    `max_job_bytes` for the part `job`."""

    media_type = FORM

    def parse(  # type: ignore[override]
        self, stream: Any, media_type: str | None = None, parser_context: Any = None
    ) -> SubmitForm:
        view, request = (parser_context or {})["view"], (parser_context or {})["request"]
        content_type = str(request.META.get("CONTENT_TYPE", ""))
        body = _Body(stream, expect_body(view, request.META), view)
        parts = _Parts(view.max_job_bytes())
        try:
            parts.read(body, _boundary_of(content_type))
            body.drain()
            _require_end(body.tail, content_type)
            return SubmitForm(parts.value(), parts.files)
        except BaseException:
            parts.close()
            raise


class _Parts:
    """The parts of a form as they come. most: bytes of the part `job`; no more are held in memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.files: dict[str, LocalFile] = {}
        self._job: bytes | None = None
        self._current: HashedFile | None = None

    def read(self, body: _Body, boundary: bytes) -> None:
        """Read all parts. Raises Problem."""
        try:
            for kind, head, part in _split(body, boundary):
                fields: Mapping[str, Any] = (head.get("content-disposition") or ("", {}))[1]
                name = fields.get("name")
                if name is None:
                    continue  # the text before the first part, or after the last one
                if "content-transfer-encoding" in head:
                    _refuse_encoding(str(head["content-transfer-encoding"][0]))
                if kind == FILE:
                    self._read_file(_text(name), _text(fields.get("filename", "")), head, part)
                elif kind == FIELD:
                    self._read_field(_text(name), part)
        except (MultiPartParserError, InputStreamExhausted) as error:
            raise _malformed(str(error) or "it is cut") from None

    def value(self) -> Any:
        """Return the JSON value of the part `job`. Raises Problem."""
        if self._job is None:
            as_file = " It was sent as a file: leave its file name out." if JOB in self.files else ""
            raise validation_problem(
                [
                    FieldError(
                        f"/{JOB}",
                        "required",
                        f"The form needs a part {JOB!r}: the JSON of a submit.{as_file}",
                    )
                ]
            )
        return read_json(self._job, what=f"The part {JOB!r}")

    def close(self) -> None:
        """Remove the temporary files."""
        files = [one.file for one in self.files.values()]
        if self._current is not None:
            files.append(self._current.file)
        for file in files:
            with suppress(OSError):
                file.close()

    def _read_field(self, name: str, part: Any) -> None:
        if name != JOB:
            raise validation_problem(
                [
                    FieldError(
                        f"/{name[:100]}",
                        "unknown_part",
                        f"The part {name[:100]!r} has no file name: files need one, and JSON is in {JOB!r}.",
                    )
                ]
            )
        if self._job is not None:
            raise _repeated(JOB)
        self._job = part.read(self._most + 1)
        if len(self._job) > self._most:
            raise Problem(
                413,
                "payload_too_large",
                f"The part {JOB!r} of a form may have up to {self._most} bytes, as any submit "
                "(DISPATCHER_MAX_PAYLOAD_BYTES and 64 KiB). Send files as parts of their own.",
            )

    def _read_file(self, name: str, file_name: str, head: Mapping[str, Any], part: Any) -> None:
        if not file_name:
            return
        if name in self.files:
            raise _repeated(name)
        if len(self.files) >= settings.DISPATCHER.form_files:
            raise _too_many()
        # `SubmitForm.close` or `close` closes it
        self._current = HashedFile(SpooledTemporaryFile(_IN_MEMORY_BYTES))  # type: ignore[arg-type]  # noqa: SIM115
        try:
            for piece in part:
                self._current.add(piece)
        except OSError:
            raise Problem(
                507,
                "no_room_for_body",
                "The server has no disk space for the files of this form.",
                retryable=True,
                retry_after_seconds=60.0,
            ) from None
        media_type = _text(head.get("content-type", ("", {}))[0]).strip()
        self.files[name] = self._current.done(media_type=media_type, name=_base_name(file_name))
        self._current = None


def _split(body: Any, boundary: bytes) -> Any:
    """Yield kind, headers and stream of each part. Raises MultiPartParserError, InputStreamExhausted."""
    return Parser(LazyStream(ChunkIter(body, _PIECE_BYTES)), boundary)


def _boundary_of(content_type: str) -> bytes:
    """Return the boundary of a form's Content-Type. Raises Problem 400."""
    found = _BOUNDARY.search(content_type)
    boundary = (found[1] or found[2]) if found else ""
    if not boundary or not boundary.isascii():
        raise _malformed("its Content-Type has no boundary")
    return boundary.encode("ascii")


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _base_name(name: str) -> str:
    """Return the last part of a path that a browser may send as file name."""
    return name.replace("\\", "/").rpartition("/")[2]


def _refuse_encoding(encoding: str) -> None:
    """Raise Problem 400 for base64 and the like, which RFC 7578 §4.7 deprecates."""
    if encoding.strip().lower() not in ("binary", "8bit", "7bit"):
        raise _malformed(f"the Content-Transfer-Encoding {encoding[:50]!r} is not taken: send plain bytes")


class _Body:
    """The received body. most: its limit in bytes. view: whose limit it is. tail: its last bytes."""

    def __init__(self, stream: Any, most: int, view: Any) -> None:
        self._stream, self.most, self._view, self.tail = stream, most, view, b""
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size if size >= 0 else _IN_MEMORY_BYTES)
        self._read += len(data)
        if self._read > self.most:
            raise too_large(self.most, self._view)
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        return data

    def drain(self) -> None:
        while self.read(_IN_MEMORY_BYTES):
            pass


def _require_end(tail: bytes, content_type: str) -> None:
    """Raise Problem 400 for a form without its closing boundary: its last file may be cut."""
    if b"--" + _boundary_of(content_type) + b"--" not in tail:
        raise _malformed("it ends without its closing boundary")


def _malformed(why: str) -> Problem:
    return Problem(400, "malformed_form", f"The body is not a form (RFC 7578): {why}.")


def _repeated(name: str) -> Problem:
    return validation_problem(
        [FieldError(f"/{name[:100]}", "repeated_part", f"The form has more than one part {name[:100]!r}.")]
    )


def _too_many() -> Problem:
    most = settings.DISPATCHER.form_files
    return Problem(413, "too_many_files", f"A form may have {most} files (DISPATCHER_FORM_FILES).")
