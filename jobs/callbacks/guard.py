"""Which addresses a callback may reach: the dispatcher must not become anybody's way into a private network.

A URL is checked when a job is submitted and its name is resolved again at each delivery; only addresses that
`allowed` returned are connected to, so that a name that changes its mind in between (DNS rebinding)
gains nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from time import monotonic
from urllib.parse import quote, urlsplit

from gpus.remember import Remembered
from jobs.errors import CallbackUrlRefused
from jobs.models.callback import MAX_RECEIVER_LENGTH

from .addresses import Address, addresses_of, is_allowed, literal_addresses

MAX_URL_LENGTH = 2000
UNREADABLE = "unreadable"
SUBMIT_LOOKUP_SECONDS = 2.0
REMEMBER_SECONDS = 10.0
_POINTER = "/callback_url"
_PORTS = {"http": 80, "https": 443}
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")

_lately: Remembered[tuple[str, int], list[Address] | OSError] = Remembered(
    lambda: REMEMBER_SECONDS, at_most=4096
)
"""Also that a name was not found: a batch asks for one name a thousand times."""


@dataclass(frozen=True, slots=True)
class Target:
    """A callback URL taken apart once. host: in ASCII (IDNA), without brackets. path: with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


class LookUps:
    """Those of one request, which share `SUBMIT_LOOKUP_SECONDS`: a batch may name a thousand hosts."""

    def __init__(self) -> None:
        self._left = SUBMIT_LOOKUP_SECONDS

    def addresses_of(self, host: str, port: int) -> list[Address] | None:
        """None: nobody knows now."""
        literal = literal_addresses(host, port)
        if literal is not None:
            return literal
        found = _lately.get((host, port), lambda: self._ask(host, port))
        return None if isinstance(found, OSError) else found

    def _ask(self, host: str, port: int) -> list[Address] | OSError | None:
        """None: there is no time left for it."""
        if self._left <= 0:
            return None
        began = monotonic()
        try:
            return addresses_of(host, port, within_seconds=self._left)
        except OSError as error:
            return error
        finally:
            self._left -= monotonic() - began


def check_callback_url(url: str, look_ups: LookUps | None = None) -> None:
    """Raises CallbackUrlRefused for a URL that may not be called. look_ups: those of the request; None: it
    has this URL alone.

    Resolves its name, so never inside a transaction. A name that can't be resolved now is accepted: each
    delivery resolves and checks again.
    """
    target = read_url(url)
    found = (look_ups or LookUps()).addresses_of(target.host, target.port)
    if found is None:
        return
    if not any(is_allowed(address) for address in found):
        raise _refused("The callback URL points to an address that this dispatcher must not call.")


def needs_look_up(url: str) -> bool:
    """Whether `check_callback_url` would ask a name server, and so might wait for it. Raises
    CallbackUrlRefused."""
    target = read_url(url)
    known = literal_addresses(target.host, target.port) is not None
    return not known and not _lately.knows((target.host, target.port))


def allowed(found: list[Address]) -> list[Address]:
    """Those that may be connected to, in the same order."""
    return [address for address in found if is_allowed(address)]


def read_url(url: str) -> Target:
    """Takes a callback URL apart; raises CallbackUrlRefused where its form alone rules it out."""
    if len(url) > MAX_URL_LENGTH:
        raise _refused(f"The callback URL is longer than {MAX_URL_LENGTH} characters.")
    if _UNSAFE.search(url):  # parsers disagree about these: the classic way past a check
        raise _refused("The callback URL holds a space, control character or backslash.")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = _ascii_host(parts.hostname or "")
    except ValueError:
        raise _refused("The callback URL is not a valid URL.") from None
    if parts.scheme not in _PORTS:
        raise _refused("The callback URL must begin with http:// or https://.")
    if not host or port == 0:
        raise _refused("The callback URL names no host.")
    if parts.username is not None or parts.password is not None:
        raise _refused("The callback URL must not hold credentials.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or _PORTS[parts.scheme], _ascii_path(path))


@lru_cache(maxsize=4096)
def receiver_of(url: str) -> str:
    """Host and port of a callback URL, by which its messages share a queue. Never raises: a URL that can't be
    read is found out by its delivery."""
    try:
        target = read_url(url)
    except CallbackUrlRefused:
        return UNREADABLE
    return f"{target.host}:{target.port}"[:MAX_RECEIVER_LENGTH]


def _ascii_host(host: str) -> str:
    """IDNA, so that the name checked is the name asked for. ValueError (UnicodeError) if it has none."""
    if ":" in host:
        return str(ip_address(host))
    return host.encode("idna").decode("ascii")


def _ascii_path(path: str) -> str:
    return quote(path, safe=_VISIBLE, errors="replace")


def _refused(message: str) -> CallbackUrlRefused:
    return CallbackUrlRefused(message, pointer=_POINTER)
