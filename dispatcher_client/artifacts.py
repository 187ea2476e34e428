"""Files in the dispatcher's store, as clients see them, and references to them in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from .errors import DispatcherError, NoAnswer, Problem, Unavailable, read_problem
from .reading import read_answer
from .transport import OpenAnswer, Request

TRIES = 5
"""New signed URLs for one file, without progress in between."""
URL_REFUSED = frozenset({403, 404})
"""Of the store: the URL has expired, or the upload that it is for has ended. A new one may do."""
_CONFLICT, _NO_ROOM, _BAD_REQUEST = 409, 507, 400
_TIMEOUT = b"<Code>RequestTimeout</Code>"
"""In S3's 400 to a body that came too slowly."""
_ERROR_BYTES = 10_000
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_ID_CHARS = 40
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


class Sending(Protocol):
    """What `Calls` gives: requests to the API, with retries."""

    async def send(
        self, request: Request, read: Callable[[dict[str, Any]], T], *, accepted: Any = ...
    ) -> T: ...


def read_artifact(document: dict[str, Any]) -> Artifact:
    """Raises NoAnswer, also for fields that must not become parts of paths."""
    found = read_answer(Artifact, document)
    if not (_is_id(found.id) and _SHA256.match(found.sha256) and found.bytes >= 0):
        raise NoAnswer("the answer is not an artifact")
    return found


def _is_id(text: str) -> bool:
    return len(text) <= _ID_CHARS and text.isalnum() and text.isascii()


def plain_id(artifact_id: str) -> str:
    if not _is_id(artifact_id):
        raise ValueError(f"not the id of an artifact: {artifact_id[:80]!r}")
    return artifact_id


def id_of(artifact: Artifact | Mapping[str, Any] | str) -> str:
    """Return the id of an artifact, of a reference in a result, or the id itself. Raises ValueError."""
    if isinstance(artifact, Artifact):
        return artifact.id
    found = artifact.get("$artifact") if isinstance(artifact, Mapping) else artifact
    if not isinstance(found, str):
        raise ValueError(f"not an artifact: {artifact!r:.100}")
    return found


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


async def beginning_of(answer: OpenAnswer) -> bytes:
    """Return the first bytes of a body, such as an error's; an endless one is not read on."""
    body = bytearray()
    async for piece in answer.pieces:
        body += piece
        if len(body) >= _ERROR_BYTES:
            break
    return bytes(body[:_ERROR_BYTES])


def store_problem(status: int, headers: Mapping[str, str], body: bytes) -> Problem:
    """Return the error for an answer of the store. S3 does not say which of them pass."""
    problem = read_problem(status, headers, body)
    passes = status in (_CONFLICT, _NO_ROOM) or (status == _BAD_REQUEST and _TIMEOUT in body)
    if problem.is_documented or not passes:
        return problem
    return Unavailable(status, problem.code, problem.detail, retryable=True, is_documented=False)
