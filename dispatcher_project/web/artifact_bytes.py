"""ASGI application for the bytes of artifacts in a local folder: signed PUT, GET and HEAD requests.

No thread of Django is used, and no database: the URL's signature is the permission. Each transfer has a
thread of its own, which moves the bytes between socket and file, so that neither the event loop nor submits
wait for a disk. The body of an upload reaches the store's folder under a temporary name, and its place only
whole, checked and synced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.conf import settings

from artifacts.keys import ObjectKey, read_key
from artifacts.store.configured import STORE_PATH
from artifacts.store.contract import StoreError
from artifacts.store.local import LocalStore
from artifacts.store.names import attachment
from artifacts.store.receiver import Incoming
from artifacts.store.signatures import BadSignature, Expired, Grant, read_grant
from dispatcher_project.web.exchange import ClientGone, Exchange, Headers, Transfers, in_thread_of
from dispatcher_project.web.protocol import drop_client
from dispatcher_project.web.request_limits import Scope
from foundation.http_api.problems import Problem
from jobs.api.errors import store_problem
from jobs.events.stream import Receive, Send

PREFIX = f"{STORE_PATH}/"
SERVING_THREADS = 4
"""Threads that check URLs and open files."""
SANDBOX = "sandbox; default-src 'none'"
_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)\Z", re.IGNORECASE)
_MOST = 10**18
"""In place of larger numbers: no object has so many bytes."""


class ArtifactBytes:
    """Serves a local store. store: returns it; None if the store is not a folder, and all is 404."""

    def __init__(self, store: Callable[[], LocalStore | None]) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(SERVING_THREADS, thread_name_prefix="artifact-bytes")
        self._transfers = Transfers()
        # as many again for bodies of refused uploads, which are read without effect. Not at a lower priority:
        # preempted while it has the interpreter, a thread stops all others (p99 of submits 54 -> 160 ms)
        self._moving = ThreadPoolExecutor(
            2 * settings.DISPATCHER.artifact_transfers, thread_name_prefix="artifact-transfer"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, PREFIX, self._moving)
        try:
            await self._serve(exchange)
        except Problem as problem:
            await exchange.refuse(problem)
        except StoreError as error:
            await exchange.refuse(store_problem(error))
        except ClientGone:
            drop_client(scope)

    async def _serve(self, exchange: Exchange) -> None:
        store = self._store()
        key = read_key(exchange.path)
        if store is None or key is None:
            raise Problem(404, "unknown_route", "There is no such object.")
        if exchange.method not in ("GET", "HEAD", "PUT"):
            raise Problem(
                405, "method_not_allowed", "Only GET, HEAD and PUT.", headers={"Allow": "GET, HEAD, PUT"}
            )
        grant = await in_thread_of(self._threads, lambda: _grant(exchange, key, store))
        with self._transfers.of(key.tenant_id):
            if exchange.method == "PUT":
                await self._put(exchange, grant, store)
            else:
                await self._get(exchange, grant, store)

    async def _put(self, exchange: Exchange, grant: Grant, store: LocalStore) -> None:
        if exchange.declared != grant.size:
            raise Problem(
                400,
                "artifact_bytes_wrong",
                f"The Content-Length must be {grant.size}, as declared; "
                + ("it is missing." if exchange.declared is None else f"it is {exchange.declared}."),
            )
        opened: list[Incoming] = []  # by the thread: a request that is cut off meanwhile closes it, too
        try:
            await exchange.in_thread(lambda: opened.append(_receiver(grant, store)))
            await exchange.receive(opened[0].add)
            await exchange.in_thread(opened[0].finish)
        finally:
            for receiver in opened:
                await exchange.in_thread(receiver.close)
        tag = f'"{grant.key.sha256}"' if not grant.upload else f'"{grant.number}"'
        await exchange.answer(200, [(b"etag", tag.encode()), (b"content-length", b"0")])

    async def _get(self, exchange: Exchange, grant: Grant, store: LocalStore) -> None:
        descriptor, size = await in_thread_of(self._threads, lambda: store.open(grant.key))
        try:
            tag = f'"{grant.key.sha256}"'
            headers: Headers = [
                (b"etag", tag.encode()),
                (b"accept-ranges", b"bytes"),
                (b"cache-control", b"private, max-age=3600, immutable"),
                (b"content-disposition", attachment(grant.name).encode()),
                (b"content-security-policy", SANDBOX.encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"cross-origin-resource-policy", b"cross-origin"),
            ]
            if _is_known(exchange.header("if-none-match"), tag):
                await exchange.answer(304, headers)
                return
            wanted = _range(exchange, size, tag) if exchange.method == "GET" else None
            first, behind = wanted or (0, size)
            headers += [
                (b"content-type", (grant.content_type or "application/octet-stream").encode("latin1")),
                (b"content-length", str(behind - first).encode()),
            ]
            if wanted:
                headers.append((b"content-range", f"bytes {first}-{behind - 1}/{size}".encode()))
            await exchange.answer_with_file(206 if wanted else 200, headers, descriptor, first, behind)
        finally:
            os.close(descriptor)


def _grant(exchange: Exchange, key: ObjectKey, store: LocalStore) -> Grant:
    try:
        return read_grant(exchange.method, key, exchange.query, store.now())
    except BadSignature:
        raise Problem(
            403, "bad_signature", "The URL was changed, or is for another method. Ask for a new one."
        ) from None
    except Expired:
        raise Problem(403, "url_expired", "The URL has expired. Ask for a new one.") from None


def _receiver(grant: Grant, store: LocalStore) -> Incoming:
    if grant.upload:
        return store.receive_part(grant.key, grant.upload, grant.number, grant.size)
    return store.receive(grant.key, grant.size)


def _is_known(header: str, tag: str) -> bool:
    """Return whether the client has the object, by the tags in its If-None-Match."""
    return header == "*" or tag in (one.strip().removeprefix("W/") for one in header.split(","))


def _range(exchange: Exchange, size: int, tag: str) -> tuple[int, int] | None:
    """Return the first position and the one behind the last of the wanted bytes; None: all are wanted. A
    header that is malformed, has several ranges or ends before it begins is ignored (RFC 9110 §14.2). Raises
    Problem 416."""
    found = _RANGE.match(exchange.header("range").strip())
    if found is None or not (found[1] or found[2]) or exchange.header("if-range") not in ("", tag):
        return None
    last = _number(found[2])
    if not found[1]:
        first, behind = max(0, size - last), size
    else:
        first = _number(found[1])
        if found[2] and last < first:
            return None
        behind = min(size, last + 1) if found[2] else size
    if first >= behind:
        raise Problem(
            416,
            "range_not_satisfiable",
            f"The object has {size} bytes.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return first, behind


def _number(digits: str) -> int:
    """Return a position; Python converts no text of thousands of digits."""
    return _MOST if len(digits.lstrip("0")) > 18 else int(digits or 0)
