"""Files: uploads in resumable parts and downloads by range, straight between this machine and the store.

A file is hashed first; the store checks the hash. What was interrupted goes on where it ended when the same
call is made again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from .errors import DispatcherError, NoAnswer, Problem, read_json, read_problem
from .reading import read_answer
from .transport import FilePart, OpenAnswer, Request, SignedRequest, Transport, call_with_retries

PARTS_ABOVE_BYTES = 64 * 1024 * 1024
"""A larger file is uploaded in parts."""
_CHUNK_BYTES = 1024 * 1024
_TRIES = 5
"""New signed URLs for one file: each is valid for an hour by default."""
_EXISTS, _FORBIDDEN = 412, 403
_NAME_BYTES, _SUFFIX_CHARS = 200, 16
"""Of a downloaded file's name: file systems take 255 bytes, and a partial file's name is longer."""
OnProgress = Callable[[int, int], None]
"""Gets the bytes that are done, and all bytes."""

T = TypeVar("T")


class FileChanged(DispatcherError):
    """The file was changed while it was uploaded, or the bytes that arrived are not the artifact's."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file in the dispatcher's store. state: promised or stored. made_by_job: the job that made it."""

    id: str
    state: str
    bytes: int
    sha256: str
    content_type: str
    name: str
    made_by_job: str | None
    created_at: datetime
    expires_at: datetime

    @property
    def ref(self) -> dict[str, str]:
        """The value that stands for the file in a payload."""
        return {"$artifact": self.id}


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


class Sending(Protocol):
    """What `Calls` gives: requests to the API, with retries."""

    async def send(
        self, request: Request, read: Callable[[dict[str, Any]], T], *, accepted: Any = ...
    ) -> T: ...


class Files:
    """Uploads and downloads over a transport. api: requests to the dispatcher."""

    def __init__(
        self, transport: Transport, api: Sending, *, timeout_seconds: float, retry_seconds: float
    ) -> None:
        self._transport, self._api = transport, api
        self._timeout_seconds, self._retry_seconds = timeout_seconds, retry_seconds

    async def find(self, artifact_id: str) -> Artifact:
        request = Request("GET", f"/artifacts/{_plain(artifact_id)}/meta", self._timeout_seconds)
        return await self._api.send(request, _read_artifact)

    # -- upload ------------------------------------------------------------------------------------

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
        for attempt in range(1, _TRIES + 1):
            promised = await self._api.send(
                Request("POST", "/artifacts", self._timeout_seconds, body),
                lambda document: read_answer(_Promise, document),
                accepted=(200, 201),
            )
            try:
                await self._send_file(file, promised, on_progress)
                break
            except Problem as problem:
                await self._transport.use_files(lambda _: _require_unchanged(file))
                if problem.status != _FORBIDDEN or attempt == _TRIES:  # else the URL has expired
                    raise
        await self._transport.use_files(lambda _: _require_unchanged(file))
        if on_progress is not None:
            on_progress(file.bytes, file.bytes)
        request = Request("POST", f"/artifacts/{promised.id}/complete", self._completion_seconds(file.bytes))
        return await self._api.send(request, _read_artifact)

    async def _send_file(self, file: _File, promised: _Promise, on_progress: OnProgress | None) -> None:
        if promised.exists or promised.upload is None:
            return
        if promised.parts is None:
            await self._put(
                promised.upload, file, FilePart(file.path, 0, file.bytes, on_progress, file.bytes)
            )
            return
        for part in promised.parts.missing:
            await self._put(part, file, FilePart(file.path, part.first, part.bytes, on_progress, file.bytes))

    async def _put(self, signed: SignedRequest, file: _File, part: FilePart) -> None:
        async def once() -> None:
            await self._transport.use_files(lambda _: _require_unchanged(file))
            async with self._transport.opened_at(signed, self._timeout_seconds, part) as answer:
                body = b"".join([piece async for piece in answer.pieces])
            if answer.status != _EXISTS and not 200 <= answer.status < 300:
                raise read_problem(answer.status, answer.headers, body)

        await self._retried(once)

    def _completion_seconds(self, size: int) -> float:
        """The dispatcher reads a file in parts once: allow it 20 MB/s."""
        return self._timeout_seconds + size / 20e6

    # -- download -----------------------------------------------------------------------------------

    async def download(self, artifact_id: str, path: Path, on_progress: OnProgress | None) -> Artifact:
        """Download a file. Raises OSError, FileChanged, Problem and NoAnswer."""
        artifact = await self.find(artifact_id)
        partial = path.with_name(f"{path.name}.{artifact.sha256[:16]}.part")

        async def once() -> None:
            await self._fetch(artifact, partial, on_progress)

        await self._retried(once)
        await self._transport.use_files(lambda _: _finish(partial, path, artifact))
        return artifact

    async def download_all(self, value: Any, folder: Path) -> dict[str, Path]:
        """Download all files that a value refers to; return their paths by the artifacts' ids.

        A file has the name of its artifact without folders, and its id where that is taken or empty."""
        await self._transport.use_files(lambda _: folder.mkdir(parents=True, exist_ok=True))
        paths: dict[str, Path] = {}
        for artifact_id in ids_in(value):
            artifact = await self.find(artifact_id)
            path = folder / free_name(artifact.name, artifact_id, {path.name for path in paths.values()})
            await self.download(artifact_id, path, None)
            paths[artifact_id] = path
        return paths

    async def _fetch(self, artifact: Artifact, partial: Path, on_progress: OnProgress | None) -> None:
        """Append the missing bytes to the partial file."""
        done = await self._transport.use_files(lambda _: _size_of(partial))
        if done >= artifact.bytes and done:
            return
        async with self._opened(artifact, done) as answer_of_store:
            status = answer_of_store.status
            if status not in (200, 206):
                body = b"".join([piece async for piece in answer_of_store.pieces])
                raise read_problem(status, answer_of_store.headers, body[:10_000])
            file = await self._transport.use_files(lambda _: partial.open("ab" if status == 206 else "wb"))
            try:
                await self._receive(
                    answer_of_store.pieces, file, done if status == 206 else 0, artifact, on_progress
                )
            finally:
                await self._transport.use_files(lambda _: file.close())

    async def _receive(
        self, pieces: Any, file: BinaryIO, done: int, artifact: Artifact, on_progress: OnProgress | None
    ) -> None:
        waiting = bytearray()
        async for piece in pieces:
            waiting += piece
            done += len(piece)
            if done > artifact.bytes:
                raise FileChanged("The store sent more bytes than the artifact has.")
            if len(waiting) >= _CHUNK_BYTES:
                data = bytes(waiting)
                waiting.clear()
                await self._transport.use_files(lambda _, data=data: file.write(data))  # type: ignore[misc]
                if on_progress is not None:
                    on_progress(done, artifact.bytes)
        rest = bytes(waiting)
        await self._transport.use_files(lambda _: file.write(rest))
        if on_progress is not None:
            on_progress(done, artifact.bytes)
        if done < artifact.bytes:
            raise NoAnswer(f"the answer was cut off: {artifact.bytes - done} bytes are missing")

    async def read(self, artifact_id: str) -> Any:
        """Return the JSON value in an artifact. Raises AnswerTooLarge, FileChanged, Problem and NoAnswer."""
        artifact = await self.find(artifact_id)

        async def once() -> bytes:
            began = time.monotonic()
            async with self._opened(artifact, 0) as answer:
                body = await self._transport.whole_body(answer, self._timeout_seconds, began)
            if answer.status != 200:
                raise read_problem(answer.status, answer.headers, body)
            return body

        body = await self._retried(once)
        if hashlib.sha256(body).hexdigest() != artifact.sha256:
            raise FileChanged("The bytes that arrived are not the artifact's.")
        try:
            return read_json(body)
        except ValueError as error:
            raise NoAnswer(f"the artifact {artifact_id} is not JSON: {error}") from None

    @asynccontextmanager
    async def _opened(self, artifact: Artifact, first: int) -> AsyncIterator[OpenAnswer]:
        """Open the answer of the store with the bytes from position `first`. Raises Problem."""
        request = Request("GET", f"/artifacts/{artifact.id}", self._timeout_seconds)
        answer = await self._transport.request(request)
        if answer.status != 302:
            raise read_problem(answer.status, answer.headers, answer.body)
        headers = {"Range": f"bytes={first}-"} if first else {}
        signed = SignedRequest("GET", answer.headers["location"], headers)
        async with self._transport.opened_at(signed, self._timeout_seconds) as opened:
            yield opened

    async def _retried(self, once: Callable[[], Awaitable[T]]) -> T:
        return await call_with_retries(once, retry_seconds=self._retry_seconds, sleep=self._transport.sleep)


def ids_in(value: Any) -> list[str]:
    """Return the ids of all artifacts that a JSON value refers to, each once, in the order of the value."""
    found: dict[str, None] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            if one.keys() == {"$artifact"} and isinstance(one["$artifact"], str):
                found[one["$artifact"]] = None
            else:
                waiting += reversed(list(one.values()))
        elif isinstance(one, list | tuple):
            waiting += reversed(one)
    return list(found)


def free_name(name: str, artifact_id: str, taken: Collection[str]) -> str:
    """Return the name of a file in a folder: never a path, a name that is taken, or one that is too long for
    the file system beside the end of a partial file."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = _shortened("".join(filter(str.isprintable, last)).strip(". "))
    return artifact_id if not plain else f"{artifact_id}-{plain}" if plain in taken else plain


def _shortened(name: str) -> str:
    """Return at most `_NAME_BYTES` of a name, with its suffix."""
    if len(name.encode()) <= _NAME_BYTES:
        return name
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > _SUFFIX_CHARS:
        stem, dot, suffix = name, "", ""
    room = _NAME_BYTES - len((dot + suffix).encode())
    return stem.encode()[:room].decode(errors="ignore") + dot + suffix


def id_of(artifact: Artifact | Mapping[str, Any] | str) -> str:
    """Return the id of an artifact, of a reference in a result, or the id itself. Raises ValueError."""
    if isinstance(artifact, Artifact):
        return artifact.id
    found = artifact.get("$artifact") if isinstance(artifact, Mapping) else artifact
    if not isinstance(found, str):
        raise ValueError(f"not an artifact: {artifact!r:.100}")
    return found


def _read_artifact(document: dict[str, Any]) -> Artifact:
    return read_answer(Artifact, document)


def _plain(artifact_id: str) -> str:
    if not artifact_id.isalnum() or not artifact_id.isascii():
        raise ValueError(f"not the id of an artifact: {artifact_id[:80]!r}")
    return artifact_id


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


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _finish(partial: Path, path: Path, artifact: Artifact) -> None:
    """Check the hash and give the file its name. Raises FileChanged, and removes the file."""
    if not partial.exists() and not artifact.bytes:
        partial.touch()
    if _hashed(partial).sha256 != artifact.sha256:
        partial.unlink()
        raise FileChanged("The bytes that arrived are not the artifact's. Download it again.")
    partial.replace(path)
