"""Which clients are counted together: those of one IPv4 address, or of one IPv6 network."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

IPV6_BITS = 64
"""The network that a provider gives to one customer at least."""
_LONGEST_NAME = 50


def network_of(address: str) -> str:
    """Return an IPv4 address as it is, of an IPv6 address its /64 network; a mapped IPv4 address is IPv4."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_LONGEST_NAME]
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ip_network((int(parsed), IPV6_BITS), strict=False))
    return str(parsed)


def is_address(text: str) -> bool:
    """Whether the text is an IP address, or a network that IPv6 addresses are counted by."""
    try:
        ip_network(text)
    except ValueError:
        return False
    return "/" not in text or (":" in text and text.endswith("/64"))
