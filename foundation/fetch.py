"""GET of an untrusted URL: to checked addresses only, each redirect checked again, bounded in bytes and time,
passed on in pieces.

The caller says which addresses may be connected to. Nothing is decompressed.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin

from foundation.http_client import (
    REDIRECTS,
    Address,
    BadUrl,
    Connection,
    Target,
    body_of,
    connect,
    head_of,
    read_response,
    read_url,
    refused_coding,
)

MAX_REDIRECTS = 5
_WELL_KNOWN = 1024
"""Below this port only those of web servers: others are of mail servers, shells and the like."""
AllowedAddresses = Callable[[Target], Awaitable[list[Address]]]
"""Returns the addresses of a target's host that may be connected to, best first; none if all are refused.
Raises OSError if the name can't be resolved."""


class NotFetched(Exception):
    """The file was not read whole. The text is for the client that named the URL; it continues "The URL":
    "answers 404". It has no address that the name resolved to. status: of the server's answer, where that is
    the reason."""

    def __init__(self, text: str = "", status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class AddressRefused(NotFetched):
    """The caller allows none of the addresses of the host."""


class TooLong(NotFetched):
    """The file has more bytes than allowed."""


class TooSlow(NotFetched):
    """The file did not arrive in time."""


class NotKept(Exception):
    """`add` could not keep a piece: its OSError is the cause. The server is not at fault."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """bytes: most of the body. seconds: for all of it, with redirects. schemes: also of redirects."""

    bytes: int
    seconds: float
    schemes: Collection[str] = ("https",)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A body that was read whole. media_type: as its server says, in lower case without parameters."""

    bytes: int
    media_type: str


async def fetch(
    url: str,
    add: Callable[[bytes], object],
    *,
    limits: FetchLimits,
    allowed: AllowedAddresses,
) -> Fetched:
    """Read a file by GET, and pass its bytes on as they come.

    add: called with each piece, on this event loop. Raises NotFetched and NotKept, after which the passed
    bytes are worthless.
    """
    try:
        async with asyncio.timeout(limits.seconds) as limit:
            return await _follow(url, add, limits, allowed)
    except TimeoutError as late:
        if limit.expired():
            raise TooSlow(f"was not read in {limits.seconds:g} s") from None
        raise NotFetched(_reason(late)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotFetched(_reason(error)) from None


def fetch_now(
    url: str,
    add: Callable[[bytes], object],
    *,
    limits: FetchLimits,
    allowed: AllowedAddresses,
    set_stop: Callable[[Callable[[], None] | None], None] = lambda stop: None,
) -> Fetched:
    """`fetch` for a thread without an event loop.

    set_stop: gets what ends the read early from another thread, which is NotFetched; None at the end.
    """
    return asyncio.run(_until_stopped(fetch(url, add, limits=limits, allowed=allowed), set_stop))


async def _until_stopped(
    fetching: Coroutine[Any, Any, Fetched], set_stop: Callable[[Callable[[], None] | None], None]
) -> Fetched:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(fetching)

    def stop() -> None:
        with suppress(RuntimeError):  # the loop is closed: the read has ended
            loop.call_soon_threadsafe(task.cancel)

    set_stop(stop)
    try:
        return await task
    except asyncio.CancelledError:
        raise NotFetched("was not read: its reader was stopped") from None
    finally:
        set_stop(None)


def read_fetched_url(url: str, schemes: Collection[str] = ("https",)) -> Target:
    """Parse the URL of a file. Raises NotFetched if its form is not allowed."""
    try:
        target = read_url(url)
    except BadUrl as bad:
        raise NotFetched(str(bad)) from None
    if target.scheme not in schemes:
        raise NotFetched(f"must begin with {' or '.join(f'{one}://' for one in schemes)}")
    if "#" in url:
        raise NotFetched("must not have a fragment (#)")
    if target.port < _WELL_KNOWN and target.port not in (80, 443):
        raise NotFetched(f"names port {target.port}: below {_WELL_KNOWN} only 80 and 443 are allowed")
    return target


async def _follow(
    url: str, add: Callable[[bytes], object], limits: FetchLimits, allowed: AllowedAddresses
) -> Fetched:
    for _ in range(MAX_REDIRECTS + 1):
        target = read_fetched_url(url, limits.schemes)
        addresses = await allowed(target)
        if not addresses:
            raise AddressRefused("points to an address that this dispatcher must not read")
        found = await _get(target, addresses, add, limits)
        if isinstance(found, Fetched):
            return found
        url = urljoin(url, found).partition("#")[0]
    raise NotFetched(f"leads to more than {MAX_REDIRECTS} redirects")


async def _get(
    target: Target, addresses: list[Address], add: Callable[[bytes], object], limits: FetchLimits
) -> Fetched | str:
    """Return the file, or where a redirect leads."""
    sock = await connect(target, addresses, _tls())
    try:
        wire = Connection(sock)
        await wire.handshake()
        await wire.send(
            head_of("GET", target, {"Accept": "*/*", "User-Agent": "gpu-dispatcher", "Connection": "close"})
        )
        response = await read_response(wire, "GET")
        location = response.headers.get("Location")
        if response.status in REDIRECTS and location:
            return location
        if response.status != 200:
            raise NotFetched(f"answers {response.status}", response.status)
        headers = response.headers
        if coding := refused_coding(headers.get("Content-Encoding"), headers.get("Transfer-Encoding")):
            raise NotFetched(f"sends the file encoded ({coding}), although it was asked for it as it is")
        if response.length is not None and response.length > limits.bytes:
            raise _too_long(limits)
        size = 0
        async with aclosing(body_of(wire, response)) as pieces:
            async for data in pieces:
                size += len(data)
                if size > limits.bytes:
                    raise _too_long(limits)
                _keep(add, data)
        media_type = (response.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        return Fetched(size, media_type)
    finally:
        sock.close()


def _keep(add: Callable[[bytes], object], data: bytes) -> None:
    try:
        add(data)
    except OSError as error:
        raise NotKept from error


def _too_long(limits: FetchLimits) -> TooLong:
    return TooLong(f"has more than {limits.bytes} bytes")


def _reason(error: Exception) -> str:
    """Return what went wrong, without addresses and without texts of the server."""
    if isinstance(error, socket.gaierror):
        return "names a host that can't be resolved"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "does not speak TLS"
    if isinstance(error, http.client.IncompleteRead):
        return "ended before its last byte"
    if isinstance(error, http.client.HTTPException | ValueError):
        return "does not answer as a web server does"
    if isinstance(error, TimeoutError):
        return "can't be reached in time"
    number = error.errno if isinstance(error, OSError) else None  # asyncio's text has the address
    return f"can't be reached: {os.strerror(number) if number else 'no connection'}"


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
