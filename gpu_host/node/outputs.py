"""Files that the result of a run names, put into the dispatcher's store: promised at the URL that the request
named, then sent by the signed request in the answer."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from gpu_host.handlers.context import keep_trying
from gpu_host.handlers.files import OUTPUT, has_saved
from gpu_host.local.result_files import with_files_saved
from gpu_host.node.runs import Run
from gpus.errors import OutputNotStored, OutputRefused

TIMEOUT_SECONDS = 60.0
SAVE_SECONDS = 60.0
"""How long the dispatcher and its store may be away, as for a pinned worker (`artifact_save_seconds`)."""
_CHUNK_BYTES = 1024 * 1024
_EXISTS = 412
_PASSES = frozenset({408, 425, 500, 502, 503, 504, 507})
_CONFLICT, _BAD_REQUEST, _TOO_MANY = 409, 400, 429
"""S3 answers 409 while another request writes the object."""
_TIMEOUT = b"<Code>RequestTimeout</Code>"
"""In S3's 400 to a body that came too slowly."""
_ANSWER_BYTES = 1024 * 1024


def with_outputs(run: Run, result: Any) -> Any:
    """Return the result with references in place of the files that it names. Raises GpuError."""
    folder = run.context.made_output_dir
    if folder is None:
        return result
    text = json.dumps(result, allow_nan=False)
    if not has_saved(text, json.dumps(str(folder))[1:-1]):
        return result
    if not run.order.artifact_url:
        if OUTPUT in text:
            raise OutputRefused("The caller of this run takes no files: it named no X-Artifact-Url.")
        return result
    return with_files_saved(result, folder, _Uploads(run).save)


class _Uploads:
    def __init__(self, run: Run) -> None:
        self._url, self._token = run.order.artifact_url, run.order.callback_token
        self._wait = run.context.wait

    def save(self, file: BinaryIO, *, name: str = "", content_type: str = "") -> dict[str, str]:
        """Upload a file; return the reference to it. Raises OutputRefused, OutputNotStored and Cancelled."""
        digest, size = hashlib.sha256(), 0
        most = os.fstat(file.fileno()).st_size
        for chunk in _chunks(file):
            digest.update(chunk)
            size += len(chunk)
            if size > most:
                raise OutputRefused("A file of the run grew while it was saved.")
        body = {"bytes": size, "sha256": digest.hexdigest()}
        body |= {"name": name} if name else {}
        body |= {"content_type": content_type} if content_type else {}
        failures = (OSError, http.client.HTTPException, ValueError, KeyError, _Passes)
        try:
            artifact = keep_trying(
                lambda: self._send(body, file, size),
                failures=failures,
                seconds=SAVE_SECONDS,
                wait=self._wait,
            )
        except failures as error:
            text = f"A file of the run could not be uploaded: {str(error)[:200]}"
            raise OutputNotStored(text) from None
        return {"$artifact": artifact}

    def _send(self, body: Mapping[str, Any], file: BinaryIO, size: int) -> str:
        """Upload the file unless the dispatcher has it; return the artifact's id."""
        promised = self._promise(body)
        if not promised["exists"]:
            _put(promised["upload"], file, size)
        return str(promised["id"])

    def _promise(self, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        answer = _request("POST", self._url, json.dumps(body).encode(), headers)
        if answer.status in (200, 201):
            found = json.loads(answer.body)
            if isinstance(found, dict):
                return found
        _require_passing(answer)
        raise ValueError(f"the dispatcher answered {answer.status}")


class _Passes(Exception):
    """An answer after which the same request may succeed."""


def _put(upload: Mapping[str, Any], file: BinaryIO, size: int) -> None:
    file.seek(0)
    headers = {"Content-Length": str(size), **upload["headers"]}
    answer = _request(str(upload["method"]), str(upload["url"]), file, headers)
    if answer.status == _EXISTS or 200 <= answer.status < 300:
        return
    is_slow = answer.status == _BAD_REQUEST and _TIMEOUT in answer.body
    if is_slow or answer.status in (_CONFLICT, _TOO_MANY):
        raise _Passes(f"the store answered {answer.status}")
    _require_passing(answer)


class _Answer(NamedTuple):
    status: int
    body: bytes
    may_repeat: bool
    """The answer has a header `Retry-After`."""


def _require_passing(answer: _Answer) -> None:
    """Raise _Passes for an answer after which the request is repeated, OutputRefused for any other. The
    dispatcher's 429 without `Retry-After` is final: the run has saved as many files as it may."""
    if answer.status in _PASSES or (answer.status == _TOO_MANY and answer.may_repeat):
        raise _Passes(f"the answer was {answer.status}")
    text = answer.body[:200].decode(errors="replace")
    raise OutputRefused(f"A file of the run was refused ({answer.status}): {text}")


def _request(method: str, url: str, body: Any, headers: dict[str, str]) -> _Answer:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http(s) URL: {url[:80]!r}")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
    connection.blocksize = _CHUNK_BYTES
    try:
        connection.request(method, parts.path + (f"?{parts.query}" if parts.query else ""), body, headers)
        answer = connection.getresponse()
        text = answer.read(_ANSWER_BYTES)
        return _Answer(answer.status, text, answer.headers["Retry-After"] is not None)
    finally:
        connection.close()


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
