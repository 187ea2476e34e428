"""Uploads of files straight to the store, in parts: the same call again sends the missing ones."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from .artifacts import (
    TRIES,
    URL_REFUSED,
    Artifact,
    FileChanged,
    OnProgress,
    Sending,
    beginning_of,
    read_artifact,
    store_problem,
)
from .errors import Problem
from .reading import read_answer
from .transport import FilePart, Progress, Request, SignedRequest, Transport, call_with_retries, pause_seconds

PARTS_ABOVE_BYTES = 64 * 1024 * 1024
"""A larger file is uploaded in parts."""
_CHUNK_BYTES = 1024 * 1024
_PUT_TRIES = 20
"""Tries of one PUT that were cut off while bytes moved."""
_EXISTS = 412
_NOT_UPLOADED = "artifact_not_uploaded"


@dataclass(frozen=True, slots=True)
class _Part(SignedRequest):
    number: int
    first: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Parts:
    count: int
    missing: tuple[_Part, ...]


@dataclass(frozen=True, slots=True)
class _Promise:
    id: str
    exists: bool
    upload: SignedRequest | None
    parts: _Parts | None


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it was hashed. stamp: differs if the file is changed."""

    path: Path
    bytes: int
    sha256: str
    stamp: tuple[int, ...]


class Uploads:
    """Uploads over a transport. api: requests to the dispatcher."""

    def __init__(
        self, transport: Transport, api: Sending, *, timeout_seconds: float, retry_seconds: float
    ) -> None:
        self._transport, self._api = transport, api
        self._timeout_seconds, self._retry_seconds = timeout_seconds, retry_seconds

    async def upload(
        self, path: Path, content_type: str | None, name: str | None, on_progress: OnProgress | None
    ) -> Artifact:
        """Upload a file. Raises OSError, FileChanged, Problem and NoAnswer."""
        file = await self._transport.use_files(lambda _: _hashed(path))
        body = {
            "bytes": file.bytes,
            "sha256": file.sha256,
            "content_type": content_type,
            # bytes that are no UTF-8 can't be in JSON
            "name": (path.name.encode(errors="ignore").decode() or None) if name is None else name,
            "parts": file.bytes > PARTS_ABOVE_BYTES,
        }
        tries, fewest_missing = 0, file.bytes + 1
        while True:
            promised = await self._api.send(
                Request("POST", "/artifacts", self._timeout_seconds, body),
                lambda document: read_answer(_Promise, document),
                accepted=(200, 201),
            )
            missing = 1 if promised.parts is None else len(promised.parts.missing)
            tries = 1 if missing < fewest_missing else tries + 1
            fewest_missing = min(missing, fewest_missing)
            try:
                await self._send_file(file, promised, on_progress)
                return await self._complete(file, promised.id, on_progress)
            except Problem as problem:
                await self._transport.use_files(lambda _: _require_unchanged(file))
                may_pass = problem.status in URL_REFUSED or problem.code == _NOT_UPLOADED
                if not may_pass or tries >= TRIES:
                    raise
            await self._transport.sleep(pause_seconds(tries))

    async def _complete(self, file: _File, artifact_id: str, on_progress: OnProgress | None) -> Artifact:
        await self._transport.use_files(lambda _: _require_unchanged(file))
        if on_progress is not None:
            on_progress(file.bytes, file.bytes)
        # the dispatcher reads a file in parts once: allow it 20 MB/s
        seconds = self._timeout_seconds + file.bytes / 20e6
        request = Request("POST", f"/artifacts/{artifact_id}/complete", seconds)
        return await self._api.send(request, read_artifact)

    async def _send_file(self, file: _File, promised: _Promise, on_progress: OnProgress | None) -> None:
        if promised.exists or promised.upload is None:
            return
        if promised.parts is None:
            await self._put(promised.upload, file, 0, file.bytes, on_progress)
            return
        for part in promised.parts.missing:
            await self._put(part, file, part.first, part.bytes, on_progress)

    async def _put(
        self, signed: SignedRequest, file: _File, first: int, length: int, on_progress: OnProgress | None
    ) -> None:
        progress = Progress(_PUT_TRIES)

        def on_sent(done: int, of: int) -> None:
            progress.moved()
            if on_progress is not None:
                on_progress(done, of)

        part = FilePart(file.path, first, length, on_sent, file.bytes)

        async def once() -> None:
            await self._transport.use_files(lambda _: _require_unchanged(file))
            async with self._transport.opened_at(signed, self._timeout_seconds, part) as answer:
                body = await beginning_of(answer)
            if answer.status != _EXISTS and not 200 <= answer.status < 300:
                raise store_problem(answer.status, answer.headers, body)

        await call_with_retries(
            once, retry_seconds=self._retry_seconds, sleep=self._transport.sleep, progress=progress
        )


def _hashed(path: Path) -> _File:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        stamp = _stamp(os.fstat(file.fileno()))
        size = 0
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    found = _File(path, size, digest.hexdigest(), stamp)
    _require_unchanged(found)
    return found


def _require_unchanged(file: _File) -> None:
    """Raises FileChanged."""
    if _stamp(file.path.stat()) != file.stamp:
        raise FileChanged(f"{file.path} was changed while it was uploaded. Upload it again.")


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_size, found.st_mtime_ns, found.st_ino
