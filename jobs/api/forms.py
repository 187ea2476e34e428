"""A submit as a form (`multipart/form-data`): the part `job` is the JSON body, the others are its files.

Django's parser reads the body, which was received whole before. The files go to temporary files on their way
to the store, and their hashes are computed as they come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent
from django.core.files.uploadhandler import FileUploadHandler, StopUpload
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from artifacts.keep import HashedFile, LocalFile
from foundation.http_api.json_body import expect_body, read_json, too_large
from foundation.http_api.problems import FieldError, Problem, validation_problem

FORM = "multipart/form-data"
JOB = "job"
"""Name of the part with the body of the submit."""
_IN_MEMORY_BYTES = 256 * 1024
_TAIL_BYTES = 4096
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^;,\s]{1,70}))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SubmitForm:
    """A parsed form. job: the JSON value of its part `job`. files: the others, by name."""

    job: Any
    files: Mapping[str, LocalFile]

    def close(self) -> None:
        """Remove the temporary files."""
        for one in self.files.values():
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
        body = _Body(stream, expect_body(view, request.META))
        handler = _Files()
        try:
            form = _parse(request.META, body, handler)
            body.drain()
            _require_end(body.tail, request.META.get("CONTENT_TYPE", ""))
            job = _job(form, view.max_job_bytes())
        except BaseException:
            handler.close()
            raise
        return SubmitForm(job, handler.found)


def _parse(meta: Mapping[str, Any], body: _Body, handler: _Files) -> Any:
    try:
        # mypy: the stubs want a QueryDict's encoding
        form, _ = MultiPartParser(dict(meta), body, [handler], "utf-8").parse()  # type: ignore[arg-type]
    except MultiPartParserError as error:
        raise _malformed(str(error)) from None
    except (TooManyFieldsSent, TooManyFilesSent):
        raise _too_many() from None
    except RequestDataTooBig:
        raise too_large(body.most) from None
    if handler.problem is not None:
        raise handler.problem
    return form


class _Body:
    """The received body. most: its limit in bytes. tail: its last bytes."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self.most, self.tail = stream, most, b""
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size if size >= 0 else _IN_MEMORY_BYTES)
        self._read += len(data)
        if self._read > self.most:
            raise too_large(self.most)
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        return data

    def drain(self) -> None:
        while self.read(_IN_MEMORY_BYTES):
            pass


class _Files(FileUploadHandler):
    """Receives the files of a form."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, LocalFile] = {}
        self.problem: Problem | None = None
        self._current: HashedFile | None = None

    def new_file(self, field_name: Any, *args: Any, **kwargs: Any) -> None:
        super().new_file(field_name, *args, **kwargs)
        if field_name in self.found:
            self._refuse(_repeated(str(field_name)))
        if len(self.found) >= settings.DISPATCHER.form_files:
            self._refuse(_too_many())
        # SpooledTemporaryFile is closed by `SubmitForm.close`
        self._current = HashedFile(SpooledTemporaryFile(_IN_MEMORY_BYTES))  # type: ignore[arg-type]  # noqa: SIM115

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        assert self._current is not None
        try:
            self._current.add(raw_data)
        except OSError:
            self._refuse(
                Problem(
                    507,
                    "no_room_for_body",
                    "The server has no disk space for the files of this form.",
                    retryable=True,
                    retry_after_seconds=60.0,
                )
            )

    def file_complete(self, file_size: int) -> Any:
        assert self._current is not None
        done = self._current.done(media_type=self.content_type or "", name=self.file_name or "")
        self.found[str(self.field_name)] = done
        self._current = None
        return done

    def upload_interrupted(self) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary files."""
        files = [one.file for one in self.found.values()]
        if self._current is not None:
            files.append(self._current.file)
        for file in files:
            with suppress(OSError):
                file.close()

    def _refuse(self, problem: Problem) -> None:
        """Stop the parser, which swallows this exception and no other one that helps."""
        self.problem = problem
        raise StopUpload(connection_reset=True)


def _job(form: Any, most: int) -> Any:
    """Return the JSON value of the part `job`. Raises Problem."""
    texts = form.getlist(JOB)
    others = [name for name in form if name != JOB]
    if others:
        raise validation_problem(
            [
                FieldError(
                    f"/{others[0][:100]}",
                    "unknown_part",
                    f"The part {others[0][:100]!r} has no file name: files need one, and JSON is in {JOB!r}.",
                )
            ]
        )
    if not texts:
        raise validation_problem(
            [
                FieldError(
                    f"/{JOB}", "required", f"The form needs a part {JOB!r}: the JSON of a submit, no file."
                )
            ]
        )
    if len(texts) > 1:
        raise _repeated(JOB)
    raw = texts[0].encode("utf-8", "surrogatepass")
    if len(raw) > most:
        raise too_large(most)
    return read_json(raw)


def _require_end(tail: bytes, content_type: str) -> None:
    """Raise Problem 400 for a form without its closing boundary: its last file may be cut."""
    found = _BOUNDARY.search(content_type)
    boundary = (found[1] or found[2]) if found else ""
    if not boundary or f"--{boundary}--".encode("latin-1", "replace") not in tail:
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
