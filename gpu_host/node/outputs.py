"""Files that the result of a run names, put into the dispatcher's store: promised at the URL that the request
named, then sent by the signed request in the answer."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from gpu_host.handlers.files import OUTPUT, has_saved
from gpu_host.local.result_files import with_files_saved
from gpu_host.node.runs import Run
from gpus.errors import OutputNotStored, OutputRefused

TIMEOUT_SECONDS = 60.0
TRIES, PAUSE_SECONDS = 5, 1.0
_CHUNK_BYTES = 1024 * 1024
_EXISTS = 412
_PASSES = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
_CONFLICT, _BAD_REQUEST = 409, 400
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
        self._never = threading.Event()

    def save(self, file: BinaryIO, *, name: str = "", content_type: str = "") -> dict[str, str]:
        """Upload a file; return the reference to it. Raises OutputRefused, OutputNotStored."""
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
        last = ""
        for number in range(TRIES):
            if number:
                self._never.wait(PAUSE_SECONDS * 2 ** (number - 1))
            try:
                promised = self._promise(body)
                if not promised["exists"]:
                    _put(promised["upload"], file, size)
                return {"$artifact": str(promised["id"])}
            except (OSError, http.client.HTTPException, ValueError, KeyError, _Passes) as error:
                last = str(error)
        raise OutputNotStored(f"A file of the run could not be uploaded: {last[:200]}")

    def _promise(self, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        status, answer = _request("POST", self._url, json.dumps(body).encode(), headers)
        if status in (200, 201):
            found = json.loads(answer)
            if isinstance(found, dict):
                return found
        _require_passing(status, answer)
        raise ValueError(f"the dispatcher answered {status}")


class _Passes(Exception):
    """An answer after which the same request may succeed."""


def _put(upload: Mapping[str, Any], file: BinaryIO, size: int) -> None:
    file.seek(0)
    headers = {"Content-Length": str(size), **upload["headers"]}
    status, answer = _request(str(upload["method"]), str(upload["url"]), file, headers)
    if status == _EXISTS or 200 <= status < 300:
        return
    if status == _CONFLICT or (status == _BAD_REQUEST and _TIMEOUT in answer):
        raise _Passes(f"the store answered {status}")  # S3: 409 while another request writes the object
    _require_passing(status, answer)


def _require_passing(status: int, answer: bytes) -> None:
    """Raise _Passes for a status after which the request is repeated, OutputRefused for any other."""
    if status in _PASSES:
        raise _Passes(f"the answer was {status}")
    raise OutputRefused(f"A file of the run was refused ({status}): {answer[:200].decode(errors='replace')}")


def _request(method: str, url: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
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
        return answer.status, answer.read(_ANSWER_BYTES)
    finally:
        connection.close()


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
