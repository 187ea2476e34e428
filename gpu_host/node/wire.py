"""A request and a reply of the node, apart from sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """path: as sent, without the query. headers: lower-case names. gone: whether the caller hung up."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    gone: Callable[[], bool]

    def header(self, name: str) -> str:
        return self.headers.get(name, "").strip()


@dataclass(frozen=True, slots=True)
class Reply:
    """chunks: sent one by one instead of `body`. cut: the connection is closed without a reply. hold: it
    is kept without one until the caller hangs up. on_end: told whether it was sent, as far as known."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    chunks: Iterable[bytes] | None = None
    cut: bool = False
    hold: bool = False
    on_end: Callable[[bool], None] | None = None


CUT = Reply(cut=True)


def reply_json(value: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(value).encode(), {k.replace("_", "-"): v for k, v in headers.items()})


def reply_error(status: int, code: str, message: str, **headers: str) -> Reply:
    return reply_json({"status": "error", "code": code, "error": message}, status, **headers)
