"""ASGI application for the files that Cog containers upload (``--upload-url``): ``PUT <key>/<name>`` with the
prediction's id in ``X-Prediction-ID``.

A body goes to a temporary file, a piece at a time and in threads of its own, and from there to the store: its
hash, by which it is stored, is known at its end only.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connection

from artifacts.keep import HashedFile
from dispatcher_project.web.exchange import ClientGone, Exchange, Transfers
from dispatcher_project.web.request_limits import Scope
from foundation.http_api.problems import Problem
from foundation.ids import is_id
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
Result = TypeVar("Result")


class CogUploads:
    """ports: returns the ports with which uploads are kept."""

    def __init__(self, ports: Callable[[], Ports]) -> None:
        self._ports = ports
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cog-uploads")
        self._transfers = Transfers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, COG_UPLOADS)
        try:
            location = await self._serve(exchange)
        except ClientGone:
            return
        except Exception as error:
            await exchange.refuse(problem_of(error))
            return
        await exchange.answer(201, [(b"location", location.encode()), (b"content-length", b"0")])

    async def _serve(self, exchange: Exchange) -> str:
        if exchange.method != "PUT":
            raise Problem(405, "method_not_allowed", "Only PUT.", headers={"Allow": "PUT"})
        key, _, name = exchange.path.partition("/")
        attempt = await self._admitted(exchange, key)
        with self._transfers.of(attempt.tenant_id), tempfile.TemporaryFile() as kept:
            file = HashedFile(kept)
            async for data in exchange.body():
                await self._in_thread(lambda data=data: _add(file, data))  # type: ignore[misc]
            whole = file.done(media_type=exchange.header("content-type")[:127], name=os.path.basename(name))
            return await self._with_database(lambda: keep_upload(attempt, whole, self._ports()))

    async def _admitted(self, exchange: Exchange, key: str) -> CogAttempt:
        """Return the attempt that a request's head names, if it may upload. Raises Problem and Refused."""
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
        await self._with_database(lambda: self._admit(attempt, length))
        return attempt

    def _admit(self, attempt: CogAttempt, length: int) -> None:
        require_shared_store(self._ports())
        admit_upload(attempt, length, self._ports())

    async def _with_database(self, work: Callable[[], Result]) -> Result:
        def with_connection() -> Result:
            try:
                return work()
            finally:
                connection.close()

        return await self._in_thread(with_connection)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _add(file: HashedFile, data: bytes) -> None:
    try:
        file.add(data)
    except OSError as error:
        raise Problem(
            507,
            "no_room_for_body",
            f"The temporary folder of the web does not take the file: {os.strerror(error.errno or 0)}.",
            retryable=True,
            retry_after_seconds=60.0,
        ) from None
