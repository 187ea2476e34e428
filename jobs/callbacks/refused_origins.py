"""Where no callback goes, whatever networks are allowed: GPU servers and the dispatcher's own services.

A callback to a GPU server would be a run past queue, quota and lease.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

from django.conf import settings

from gpus.registry import queries as registry

from .addresses import Address, embedded, literal_addresses

_PORTS = {
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


@dataclass(frozen=True, slots=True)
class Origins:
    """names: host and port. literal: address and port, of those that are written as an address; ports: all of
    theirs."""

    names: frozenset[tuple[str, int]] = frozenset()
    literal: frozenset[tuple[Address, int]] = frozenset()
    ports: frozenset[int] = frozenset()

    def has_name(self, host: str, port: int) -> bool:
        return (host.rstrip(".").lower(), port) in self.names

    def has_address(self, address: Address, port: int) -> bool:
        return port in self.ports and (one_of(address), port) in self.literal

    def names_with_port(self, port: int) -> Iterator[str]:
        """Any of them may stand for an address that is asked for."""
        return (host for host, known in self.names if known == port)


def refused_origins() -> Origins:
    """Those of the registry, at most a second old, and of the settings. Reads the database."""
    limits, database = settings.DISPATCHER, settings.DATABASES["default"]
    listens = [
        _listening(origin) for origin in (*limits.callback_refused_origins, limits.health_port) if origin
    ]
    if database.get("HOST"):
        listens.append(f"postgresql://{database['HOST']}:{database.get('PORT') or 5432}")
    own = (settings.REDIS_URL, settings.BROKER_URL, limits.public_url, limits.flower_url)
    return _origins((*own, *listens, *registry.addresses_in_use()))


def _listening(origin: str) -> str:
    """origin: ``[HOST:]PORT``; without a host it is this machine's."""
    return f"//{_HERE}:{origin}" if origin.isdecimal() else f"//{origin}"


@lru_cache(maxsize=4)
def _origins(urls: tuple[str, ...]) -> Origins:
    names, literal = set[tuple[str, int]](), set[tuple[Address, int]]()
    for host, port in origins_of(urls):
        found = literal_addresses(host, port)
        if host == "localhost":
            found = [_HERE]
        if found is None:
            names.add((host, port))
        else:
            literal |= {(one_of(address), port) for address in found}
    ports = frozenset(port for _, port in literal)
    return Origins(frozenset(names), frozenset(literal), ports)


def origins_of(urls: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Host and port, also of URLs that name several; those without a host (files, unix sockets) have none."""
    for url in urls:
        scheme = ""
        for part in re.split("[;,]", url):  # as Sentinel's and the broker's
            before, found, rest = part.rpartition("//")
            scheme = before.rstrip(":").lower() if found else scheme
            try:
                parts = urlsplit(f"//{re.split('[/?#]', rest)[0]}")
                host, port = parts.hostname, parts.port or _PORTS.get(scheme)
            except ValueError:
                continue
            if host and port:
                yield host.rstrip("."), port


def one_of(address: Address) -> Address:
    """One address for all that lead to the same place: this machine has many."""
    inner = embedded(address)
    if inner is not None:
        return one_of(inner)
    if address.is_loopback or address.is_unspecified or _is_here(address):
        return _HERE
    return address


def _is_here(address: Address) -> bool:
    """Whether this machine has it: only then can a socket be bound to it."""
    if address.is_multicast:
        return False
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((str(address), 0))
    except OSError:
        return False
    return True
