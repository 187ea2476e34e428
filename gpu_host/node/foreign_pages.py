"""What a web page open on the same machine may not ask of a node without a token. Pure.

A page of any site can post to loopback (`fetch` with `no-cors`), and by DNS rebinding it can read the answers
under a name of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

_OWN_SITE = frozenset({"", "none", "same-origin"})


def foreign_page_error(method: str, headers: Mapping[str, str], *, any_name: bool = False) -> str:
    """Why the request is a web page's; empty: it need not be. headers: lower-case names. any_name: whether it
    may be asked under names other than an address and localhost."""
    host, origin = headers.get("host", "").strip(), headers.get("origin", "").strip()
    site = headers.get("sec-fetch-site", "").strip().lower()
    if host and not any_name and not _is_address(_host_of(host)):  # a browser always names it
        return "Without a token this node answers at an address or at localhost only, not at another name."
    if origin and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return "Without a token this node takes nothing from pages of other origins."
    if site not in _OWN_SITE:
        return "Without a token this node takes nothing from pages of other sites."
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and (origin or site) and kind != "application/json":
        return "Without a token this node takes only application/json from a browser."
    return ""


def _host_of(host: str) -> str:
    """Without the port and brackets; empty where it is no host."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Addresses and localhost are no names that DNS may point elsewhere."""
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost"
    return True
