"""An answer leaves its thread whole: a client that does not read it holds no thread.

Static files come in blocks, of which the way from a thread to the event loop takes ten ahead of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def whole_answers(application: WsgiApplication) -> WsgiApplication:
    """application: its longest answer fits into memory."""
    return lambda environ, start_response: _Whole(application(environ, start_response))


class _Whole:
    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[bytes]:
        yield b"".join(self._blocks)

    def close(self) -> None:
        getattr(self._blocks, "close", lambda: None)()
