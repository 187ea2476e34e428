"""SSRF protection of callbacks, and of URLs whose files are read: which addresses they may reach.

A URL's form, and an address in it, are checked when a job is submitted. A name is resolved at each delivery,
and only addresses that were checked then are connected to, which stops DNS rebinding. Whatever networks are
allowed, no callback goes to a GPU server, where it would be a run past queue, quota and lease, nor to the
dispatcher's own services.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from foundation import http_client
from foundation.http_client import Address, Target
from gpus.registry.queries import RegistryCache
from jobs.domain.errors import CallbackUrlRefused
from jobs.models.callback import MAX_RECEIVER_LENGTH

UNREADABLE = "unreadable"
_POINTER = "/callback_url"
_REFUSED_NETWORKS: tuple[IPv4Network | IPv6Network, ...] = tuple(
    ip_network(text)
    for text in (
        "100.64.0.0/10",  # carrier-grade NAT
        "192.0.0.0/24",  # protocol assignments; a cloud keeps its metadata here
        "168.63.129.16/32",  # Azure's metadata and host service, on a public address
        "192.88.99.0/24",  # 6to4 relays
        "2002::/16",  # 6to4: carries any IPv4 address
        "2001::/32",  # Teredo: the same
        "::/96",  # IPv4-compatible, and ::1
        "64:ff9b:1::/48",  # NAT64 inside a site
        "fec0::/10",  # site-local
    )
)
_METADATA: frozenset[Address] = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",  # credentials of AWS' containers
        "169.254.170.23",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "168.63.129.16",  # Azure
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
    )
)
"""Metadata services: they answer every client with credentials."""
_NAT64 = IPv6Network("64:ff9b::/96")
_SERVICE_PORTS = {
    "http": 80,
    "https": 443,
    "redis": 6379,
    "rediss": 6379,
    "valkey": 6379,
    "valkeys": 6379,
    "redis+sentinel": 26379,
    "rediss+sentinel": 26379,
    "sentinel": 26379,
    "redis+cluster": 6379,
    "rediss+cluster": 6379,
    "amqp": 5672,
    "amqps": 5671,
    "postgres": 5432,
    "postgresql": 5432,
}
_HERE = IPv4Address("127.0.0.1")


def check_callback_url(url: str, refused: RefusedOrigins) -> None:
    """Check a callback URL by its form and, if its host is an address, by that.

    A name is not resolved here, since the name server may be a tenant's and slow; each delivery resolves and
    checks it. Raises CallbackUrlRefused.
    """
    target = read_url(url)
    found = _literal_addresses(target)
    if refused.has_name(target.host, target.port) or (
        found is not None and not filter_allowed(found, target, refused)
    ):
        raise _refused(
            "The callback URL points to an address that this dispatcher must not call. Its operator can "
            "allow private networks with DISPATCHER_CALLBACK_NETWORKS."
        )


def _literal_addresses(target: Target) -> list[Address] | None:
    """Return the addresses that the host is written as; None if it is a name."""
    if target.host == "localhost" or target.host.endswith(".localhost"):  # RFC 6761
        return [IPv4Address("127.0.0.1"), IPv6Address("::1")]
    return literal_addresses(target.host, target.port)


def filter_allowed(
    found: list[Address],
    target: Target,
    refused: RefusedOrigins,
    networks: tuple[str, ...] | None = None,
) -> list[Address]:
    """Return those of the addresses that may be connected to, in the same order. networks: as of
    `is_allowed`."""
    return [
        address
        for address in found
        if is_allowed(address, networks) and not refused.has_address(address, target.port)
    ]


def read_url(url: str) -> Target:
    """Parse a callback URL. Raises CallbackUrlRefused if its form is not allowed."""
    try:
        return http_client.read_url(url)
    except http_client.BadUrl as bad:
        raise _refused(f"The callback URL {bad}.") from None


@lru_cache(maxsize=4096)
def receiver_of(url: str) -> str:
    """Return host and port of a callback URL, by which its messages share a queue. Never raises: the delivery
    of an unreadable URL fails."""
    try:
        target = read_url(url)
    except CallbackUrlRefused:
        return UNREADABLE
    return f"{target.host}:{target.port}"[:MAX_RECEIVER_LENGTH]


def _refused(message: str) -> CallbackUrlRefused:
    return CallbackUrlRefused(message, pointer=_POINTER)


def is_allowed(address: Address, networks: tuple[str, ...] | None = None) -> bool:
    """Return True for a public address, or one in `networks`; never for a cloud's metadata service. An IPv6
    address that carries an IPv4 address (mapped, NAT64) is judged by that.

    networks: private ones that are allowed; None: DISPATCHER_CALLBACK_NETWORKS."""
    inner = embedded_ipv4(address)
    if inner is not None:
        return is_allowed(inner, networks)
    if address in _METADATA:
        return False
    allowed = settings.DISPATCHER.callback_networks if networks is None else networks
    if any(address in network for network in _networks(allowed)):
        return True
    if any(address in network for network in _REFUSED_NETWORKS):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_link_local)


def literal_addresses(host: str, port: int) -> list[Address] | None:
    """Return the addresses that `host` is written as, in any spelling that the system reads; None if it is a
    name."""
    try:
        return _read(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):
        return None


def embedded_ipv4(address: Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address carries (mapped, NAT64), or None."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


@lru_cache(maxsize=8)
def _networks(texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(text.strip(), strict=False) for text in texts)


def resolve(host: str, port: int) -> list[Address]:
    """Resolve a name by the system's resolver; blocks. Raises OSError."""
    try:
        return _read(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except UnicodeError as error:
        raise OSError(f"the name {host} can't be resolved") from error


def _read(found: Iterable[tuple[Any, ...]]) -> list[Address]:
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True)
class RefusedOrigins:
    """Origins that no callback may reach.

    names: host and port. literal: address and port of those that are written as an address. ports: of
    `literal`.
    """

    names: frozenset[tuple[str, int]] = frozenset()
    literal: frozenset[tuple[Address, int]] = frozenset()
    ports: frozenset[int] = frozenset()

    def has_name(self, host: str, port: int) -> bool:
        """Return True if an origin has this name and port."""
        return (host.rstrip(".").lower(), port) in self.names

    def has_address(self, address: Address, port: int) -> bool:
        """Return True if an origin is written as this address, or as another one of the same machine."""
        return port in self.ports and (canonical_address(address), port) in self.literal

    def names_with_port(self, port: int) -> Iterator[str]:
        """Return the refused names with this port: each may resolve to a callback's address."""
        return (host for host, known in self.names if known == port)


def refused_origins(registry: RegistryCache) -> RefusedOrigins:
    """Return the origins of GPU servers (cached for a second) and of the services that the settings name."""
    limits, database = settings.DISPATCHER, settings.DATABASES["default"]
    listens = [
        _listening(origin) for origin in (*limits.callback_refused_origins, limits.health_port) if origin
    ]
    if database.get("HOST"):
        listens.append(f"postgresql://{database['HOST']}:{database.get('PORT') or 5432}")
    own = (settings.REDIS_URL, settings.BROKER_URL, limits.public_url, limits.flower_url)
    return _origins((*own, *listens, *registry.addresses_in_use()))


def _listening(origin: str) -> str:
    """Return the URL of a listening socket. origin: ``[HOST:]PORT``; without a host, of this machine."""
    return f"//{_HERE}:{origin}" if origin.isdecimal() else f"//{origin}"


@lru_cache(maxsize=4)
def _origins(urls: tuple[str, ...]) -> RefusedOrigins:
    names, literal = set[tuple[str, int]](), set[tuple[Address, int]]()
    for host, port in origins_of(urls):
        found = literal_addresses(host, port)
        if host == "localhost":
            found = [_HERE]
        if found is None:
            names.add((host, port))
        else:
            literal |= {(canonical_address(address), port) for address in found}
    ports = frozenset(port for _, port in literal)
    return RefusedOrigins(frozenset(names), frozenset(literal), ports)


def origins_of(urls: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Return host and port of each URL; some URLs name several, those of files and unix sockets none."""
    for url in urls:
        scheme = ""
        for part in re.split("[;,]", url):  # Redis Sentinel's and the broker's URLs may name several hosts
            before, found, rest = part.rpartition("//")
            scheme = before.rstrip(":").lower() if found else scheme
            try:
                parts = urlsplit(f"//{re.split('[/?#]', rest)[0]}")
                host, port = parts.hostname, parts.port or _SERVICE_PORTS.get(scheme)
            except ValueError:
                continue
            if host and port:
                yield host.rstrip("."), port


def canonical_address(address: Address) -> Address:
    """Return 127.0.0.1 for every address of this machine, else the address, as IPv4 if it carries one."""
    inner = embedded_ipv4(address)
    if inner is not None:
        return canonical_address(inner)
    if address.is_loopback or address.is_unspecified or _is_local(address):
        return _HERE
    return address


def _is_local(address: Address) -> bool:
    """Return True if the address is this machine's, which is if a socket can be bound to it."""
    if address.is_multicast:
        return False
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((str(address), 0))
    except OSError:
        return False
    return True
