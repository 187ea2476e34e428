"""Which proxies are believed about a client's address and scheme: `FORWARDED_ALLOW_IPS`."""

from __future__ import annotations

from ipaddress import ip_network

from django.core.exceptions import ImproperlyConfigured


def check_proxies(named: str) -> None:
    """Refuse what names no address, and `*`, with which any client would choose its own address.

    named: addresses and networks, separated by commas. uvicorn takes anything else for the name of a unix
    socket, and then believes no proxy. Raises ImproperlyConfigured.
    """
    for part in filter(None, (one.strip() for one in named.split(","))):
        try:
            ip_network(part)
        except ValueError:
            raise ImproperlyConfigured(
                f"FORWARDED_ALLOW_IPS must name the addresses or networks of your proxies, not {part!r}"
            ) from None
