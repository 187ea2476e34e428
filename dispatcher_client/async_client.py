"""The client for asyncio: `dispatcher_client.calls` over httpx."""

from __future__ import annotations

import os
from types import TracebackType

from .calls import Calls
from .spool import Spool
from .transport import MAX_ANSWER_BYTES


class AsyncClient(Calls):
    """`Client` for asyncio, with the same arguments and methods: ``await`` each, ``async for`` over `stream`
    and `list`. Needs httpx: ``pip install 'gpu-dispatcher-client[async]'``.

    For one event loop. ``async with`` closes its connections, or `close`."""

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        spool: str | os.PathLike[str] | None = None,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 60.0,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        from .httpx_transport import HttpxTransport  # here: `Client` needs no httpx

        self._httpx = HttpxTransport(url, api_key, max_answer_bytes=max_answer_bytes)
        super().__init__(
            self._httpx,
            spool=None if spool is None else Spool(spool),
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
        )

    async def close(self) -> None:
        await self._httpx.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
