"""Which addresses a callback may reach: the dispatcher must not become anybody's way into a private network.

The form of a URL, and an address that stands in it, are checked when a job is submitted. A name is resolved
at each delivery, and only addresses that were checked then are connected to: a name whose address changes in
between (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import quote, urlsplit

from jobs.domain.errors import CallbackUrlRefused
from jobs.models.callback import MAX_RECEIVER_LENGTH

from .addresses import Address, is_allowed, literal_addresses
from .refused_origins import Origins

MAX_URL_LENGTH = 2000
UNREADABLE = "unreadable"
_POINTER = "/callback_url"
_PORTS = {"http": 80, "https": 443}
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")


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


def check_callback_url(url: str, refused: Origins) -> None:
    """Raises CallbackUrlRefused for a URL that may not be called, as far as it says so itself.

    A name is not looked up here: that waits for a server which its tenant may have chosen. Each delivery
    resolves it and checks what it finds.
    """
    target = read_url(url)
    found = _literal_addresses(target)
    if refused.has_name(target.host, target.port) or (
        found is not None and not allowed(found, target, refused)
    ):
        raise _refused("The callback URL points to an address that this dispatcher must not call.")


def _literal_addresses(target: Target) -> list[Address] | None:
    """None: it is a name."""
    if target.host == "localhost" or target.host.endswith(".localhost"):  # RFC 6761
        return [IPv4Address("127.0.0.1"), IPv6Address("::1")]
    return literal_addresses(target.host, target.port)


def allowed(found: list[Address], target: Target, refused: Origins) -> list[Address]:
    """Those that may be connected to, in the same order."""
    return [
        address for address in found if is_allowed(address) and not refused.has_address(address, target.port)
    ]


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
