"""Which internet addresses a callback may be sent to, and which ones a name stands for."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from django.conf import settings

Address = IPv4Address | IPv6Address


def is_allowed(address: Address) -> bool:
    """Public, or inside one of DISPATCHER_CALLBACK_NETWORKS; never a cloud's metadata service. An address
    that carries an IPv4 address (mapped, NAT64) is judged by that one."""
    inner = embedded(address)
    if inner is not None:
        return is_allowed(inner)
    if address in _METADATA:
        return False
    if any(address in network for network in _networks(settings.DISPATCHER.callback_networks)):
        return True
    if any(address in network for network in _NEVER):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_link_local)


def literal_addresses(host: str, port: int) -> list[Address] | None:
    """What `host` stands for by itself, in every spelling that the system knows; None: it is a name."""
    try:
        return _read(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except (OSError, UnicodeError):
        return None


_NEVER: tuple[IPv4Network | IPv6Network, ...] = tuple(
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
"""They answer with credentials, and tell no client from another."""
_NAT64 = IPv6Network("64:ff9b::/96")


def embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address carries."""
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
    """The one place that asks the system; a literal address is its own answer."""
    try:
        return _read(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except UnicodeError as error:
        raise OSError(f"the name {host} can't be resolved") from error


def _read(found: Iterable[tuple[Any, ...]]) -> list[Address]:
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))
