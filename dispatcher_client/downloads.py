"""Downloads of files straight from the store, by range: the same call goes on where an earlier one ended."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from .artifacts import (
    TRIES,
    URL_REFUSED,
    Artifact,
    FileChanged,
    OnProgress,
    Sending,
    beginning_of,
    ids_in,
    plain_id,
    read_artifact,
    store_problem,
)
from .errors import NoAnswer, read_json, read_problem
from .file_names import free_names
from .partial_file import PartialFile, has_content
from .transport import (
    OpenAnswer,
    Progress,
    Request,
    SignedRequest,
    Transport,
    call_with_retries,
    pause_seconds,
)

_CHUNK_BYTES = 1024 * 1024

T = TypeVar("T")


class Downloads:
    """Downloads over a transport. api: requests to the dispatcher."""

    def __init__(
        self, transport: Transport, api: Sending, *, timeout_seconds: float, retry_seconds: float
    ) -> None:
        self._transport, self._api = transport, api
        self._timeout_seconds, self._retry_seconds = timeout_seconds, retry_seconds

    async def find(self, artifact_id: str) -> Artifact:
        request = Request("GET", f"/artifacts/{plain_id(artifact_id)}/meta", self._timeout_seconds)
        return await self._api.send(request, read_artifact)

    async def download(self, artifact_id: str, path: Path, on_progress: OnProgress | None) -> Artifact:
        """Download a file. Raises OSError, FileChanged, Problem and NoAnswer."""
        artifact = await self.find(artifact_id)
        is_there = await self._transport.use_files(
            lambda _: has_content(path, artifact.bytes, artifact.sha256)
        )
        if not is_there:
            await self._save(artifact, path.parent, lambda file: file.replace(path), on_progress)
        elif on_progress is not None:
            on_progress(artifact.bytes, artifact.bytes)
        return artifact

    async def download_all(self, value: Any, folder: Path, on_progress: OnProgress | None) -> dict[str, Path]:
        """Download all files that a value refers to; return their paths by the artifacts' ids. A file that is
        there already is kept, and no other file is replaced.

        A file has the name of its artifact without folders. Where another file has the name, the artifact's
        id is put before it; where the name is empty, the id is the name."""
        await self._transport.use_files(lambda _: folder.mkdir(parents=True, exist_ok=True))
        artifacts = [await self.find(artifact_id) for artifact_id in ids_in(value)]
        of, before = sum(artifact.bytes for artifact in artifacts), 0
        paths: dict[str, Path] = {}
        for artifact in artifacts:
            names = free_names(artifact.name, artifact.id, [path.name for path in paths.values()])
            report = None if on_progress is None else _shifted(on_progress, before, of)
            paths[artifact.id] = await self._save_new(artifact, folder, names, report)
            before += artifact.bytes
        return paths

    async def _save_new(
        self, artifact: Artifact, folder: Path, names: Sequence[str], on_progress: OnProgress | None
    ) -> Path:
        """Download a file into a folder, unless it is there under one of these names. Return its path."""

        def find_kept() -> Path | None:
            paths = (folder / name for name in names)
            return next((one for one in paths if has_content(one, artifact.bytes, artifact.sha256)), None)

        kept = await self._transport.use_files(lambda _: find_kept())
        if kept is None:
            return await self._save(artifact, folder, lambda file: file.publish(names), on_progress)
        if on_progress is not None:
            on_progress(artifact.bytes, artifact.bytes)
        return kept

    async def _save(
        self,
        artifact: Artifact,
        folder: Path,
        publish: Callable[[PartialFile], Path],
        on_progress: OnProgress | None,
    ) -> Path:
        """Load a file's missing bytes; return where it was published."""
        use_files = self._transport.use_files
        file = await use_files(lambda _: PartialFile(folder, artifact.id, artifact.bytes, artifact.sha256))
        is_wanted = True
        try:
            was_begun = file.bytes > 0
            await self._load(artifact, file, on_progress)
            if was_begun and not await use_files(lambda _: file.is_whole()):
                await use_files(lambda _: file.restart())
                await self._load(artifact, file, on_progress)
            if not await use_files(lambda _: file.is_whole()):
                is_wanted = False
                raise FileChanged("The bytes that arrived are not the artifact's. Download it again.")
            published = await use_files(lambda _: publish(file))
            is_wanted = False  # not before: whole bytes that could not be published are not loaded twice
            return published
        finally:
            await use_files(lambda _: file.close(is_wanted=is_wanted))

    async def _load(self, artifact: Artifact, file: PartialFile, on_progress: OnProgress | None) -> None:
        progress, most_bytes = Progress(), file.bytes

        def arrived(position: int) -> None:
            """Count bytes as progress once: a store that always begins again at 0 is not asked for ever."""
            nonlocal most_bytes
            if position > most_bytes:
                most_bytes = position
                progress.moved()

        async def once() -> None:
            if file.bytes >= artifact.bytes and file.bytes:
                if on_progress is not None:
                    on_progress(file.bytes, artifact.bytes)
                return
            async with self._opened(artifact, file.bytes) as answer:
                if answer.status not in (200, 206):
                    raise store_problem(answer.status, answer.headers, await beginning_of(answer))
                if answer.status == 200 and file.bytes:  # the store sent the whole file, not a range
                    await self._transport.use_files(lambda _: file.restart())
                await self._receive(answer.pieces, file, artifact, arrived, on_progress)

        await self._retried(once, progress)

    async def _receive(
        self,
        pieces: AsyncIterator[bytes],
        file: PartialFile,
        artifact: Artifact,
        arrived: Callable[[int], None],
        on_progress: OnProgress | None,
    ) -> None:
        """Append what arrives to the file; also what arrived before an error.

        arrived: gets the position behind the last byte."""
        waiting: list[bytes] = []
        behind = file.bytes

        async def write() -> None:
            data = waiting.copy()
            waiting.clear()
            if data:
                await self._transport.use_files(lambda _: file.write(data))
            if on_progress is not None and (data or not artifact.bytes):
                on_progress(file.bytes, artifact.bytes)

        try:
            async for piece in pieces:
                waiting.append(piece)
                behind += len(piece)
                arrived(behind)
                if behind > artifact.bytes:
                    waiting.clear()
                    raise FileChanged("The store sent more bytes than the artifact has.")
                if behind - file.bytes >= _CHUNK_BYTES:
                    await write()
        finally:
            await write()
        if file.bytes < artifact.bytes:
            raise NoAnswer(f"the answer was cut off: {artifact.bytes - file.bytes} bytes are missing")

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
        """Open the answer of the store with the bytes from position `first`, at a new URL where it refuses
        one. Raises Problem."""
        request = Request("GET", f"/artifacts/{artifact.id}", self._timeout_seconds)
        headers = {"Range": f"bytes={first}-"} if first else {}
        for tries in range(1, TRIES + 1):
            answer = await self._transport.request(request)
            if answer.status != 302:
                raise read_problem(answer.status, answer.headers, answer.body)
            signed = SignedRequest("GET", answer.headers.get("location", ""), headers)
            async with self._transport.opened_at(signed, self._timeout_seconds) as opened:
                if opened.status not in URL_REFUSED or tries == TRIES:
                    yield opened
                    return
            await self._transport.sleep(pause_seconds(tries))

    async def _retried(self, once: Callable[[], Awaitable[T]], progress: Progress | None = None) -> T:
        return await call_with_retries(
            once, retry_seconds=self._retry_seconds, sleep=self._transport.sleep, progress=progress
        )


def _shifted(on_progress: OnProgress, before: int, of: int) -> OnProgress:
    """Return a function that reports the progress of one file of several."""
    return lambda done, _: on_progress(before + done, of)
