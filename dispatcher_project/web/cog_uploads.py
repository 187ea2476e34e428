"""ASGI application for the files that Cog containers upload (``--upload-url``): ``PUT <key>/<name>`` with the
prediction's id in ``X-Prediction-ID``.

A body goes to a temporary file, a piece at a time and in threads of its own, and from there to the store: its
hash, by which it is stored, is known at its end only. Before it is read, its declared length must fit the
limits of its attempt and tenant, and a share of the temporary folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from django.conf import settings
from django.db import connection

from artifacts.keep import HashedFile
from artifacts.reservations import Used
from dispatcher_project.web.exchange import ClientGone, Exchange, Result, Transfers, in_thread_of
from dispatcher_project.web.protocol import drop_client
from dispatcher_project.web.request_limits import Scope
from foundation.http_api.problems import Problem
from foundation.ids import is_id
from foundation.names import MEDIA_TYPE_CHARS
from gpus.registry.upload_url import COG_UPLOADS, server_of_key
from jobs.api.artifacts import require_shared_store
from jobs.api.errors import problem_of
from jobs.events.stream import Receive, Send
from jobs.execution.cog_uploads import CogAttempt, admit_upload, find_attempt, keep_upload
from jobs.ports import Ports

THREADS = 4
ROW_SECONDS = 5.0
"""How long an upload waits until its attempt is known."""
_ROW_PAUSE = 0.1


@dataclass(eq=False, slots=True)
class _Body:
    """A body with `length` bytes. is_read: all of them have arrived."""

    attempt: CogAttempt
    length: int
    file: HashedFile
    is_read: bool = False


class _Bodies:
    """The bodies in the temporary folder, each with room for its whole length: a GPU server that sends many
    at once can't fill the folder."""

    def __init__(self) -> None:
        self._open: set[_Body] = set()

    @contextmanager
    def with_room(self, body: _Body) -> Iterator[None]:
        """Count a body. Raises Problem 507 if there is no room for it."""
        taken = sum(one.length for one in self._open)
        written = sum(one.file.bytes for one in self._open)
        free = shutil.disk_usage(tempfile.gettempdir()).free
        share = settings.DISPATCHER.cog_upload_share
        most = int(share * (free + written))
        if taken + body.length > most:
            raise _no_room(
                f"files that Cog containers upload may take {most} bytes together, {share:g} of what is free "
                f"(DISPATCHER_COG_UPLOAD_SHARE); they have {taken}, this one {body.length}"
            )
        self._open.add(body)
        try:
            yield
        finally:
            self._open.remove(body)

    def arriving_before(self, body: _Body) -> Used:
        """Return what other bodies of its attempt will have that have not arrived."""
        others = [
            one.length
            for one in self._open
            if one is not body and one.attempt.id == body.attempt.id and not one.is_read
        ]
        return Used(len(others), sum(others))


class CogUploads:
    """ports: returns the ports with which uploads are kept."""

    def __init__(self, ports: Callable[[], Ports]) -> None:
        self._ports = ports
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cog-uploads")
        self._transfers = Transfers()
        self._bodies = _Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, COG_UPLOADS)
        try:
            location = await self._serve(exchange)
        except ClientGone:
            drop_client(scope)
            return
        except Exception as error:
            await exchange.refuse(problem_of(error))
            return
        await exchange.answer(201, [(b"location", location.encode()), (b"content-length", b"0")])

    async def _serve(self, exchange: Exchange) -> str:
        if exchange.method != "PUT":
            raise Problem(405, "method_not_allowed", "Only PUT.", headers={"Allow": "PUT"})
        key, _, name = exchange.path.partition("/")
        attempt, length = await self._attempt_of(exchange, key)
        with self._transfers.of(attempt.tenant_id), tempfile.TemporaryFile() as kept:
            body = _Body(attempt, length, file := HashedFile(kept))
            with self._bodies.with_room(body):
                arriving = self._bodies.arriving_before(body)
                await self._with_database(lambda: self._admit(body, arriving))
                async for data in exchange.body():
                    await in_thread_of(self._threads, lambda data=data: _add(file, data))  # type: ignore[misc]
                body.is_read = True
                media_type = exchange.header("content-type")[:MEDIA_TYPE_CHARS]
                whole = file.done(media_type=media_type, name=os.path.basename(name))
                return await self._with_database(lambda: keep_upload(attempt, whole, self._ports()))

    async def _attempt_of(self, exchange: Exchange, key: str) -> tuple[CogAttempt, int]:
        """Return the attempt that a request's head names, and the length of its body. Raises Problem."""
        server = await self._with_database(lambda: server_of_key(key))
        if server is None:
            raise Problem(401, "invalid_upload_key", "The address has no key of a server. Read it anew.")
        attempt_id, length = exchange.header("x-prediction-id"), exchange.declared
        if not is_id(attempt_id):
            raise Problem(
                400, "prediction_id_required", "X-Prediction-ID must be the id of a prediction of ours."
            )
        if length is None:
            raise Problem(411, "length_required", "The request needs a Content-Length.")
        until = time.monotonic() + ROW_SECONDS
        while (attempt := await self._with_database(lambda: find_attempt(attempt_id))) is None:
            if time.monotonic() >= until:
                break
            await asyncio.sleep(_ROW_PAUSE)
        if attempt is None or attempt.server != server:
            raise Problem(404, "unknown_attempt", "This server runs no such prediction for the dispatcher.")
        return attempt, length

    def _admit(self, body: _Body, arriving: Used) -> None:
        require_shared_store(self._ports())
        admit_upload(body.attempt, body.length, self._ports(), arriving=arriving)

    async def _with_database(self, work: Callable[[], Result]) -> Result:
        def with_connection() -> Result:
            try:
                return work()
            finally:
                connection.close()

        return await in_thread_of(self._threads, with_connection)


def _add(file: HashedFile, data: bytes) -> None:
    try:
        file.add(data)
    except OSError as error:
        raise _no_room(os.strerror(error.errno or 0)) from None


def _no_room(reason: str) -> Problem:
    return Problem(
        507,
        "no_room_for_body",
        f"The temporary folder of the web does not take the file: {reason}.",
        retryable=True,
        retry_after_seconds=60.0,
    )
