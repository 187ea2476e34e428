"""``python -m dispatcher_project.web``: serve the API, the event streams and the admin."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from ipaddress import ip_network

import environ
from django.core.exceptions import ImproperlyConfigured
from uvicorn.config import STARTUP_FAILURE

from dispatcher_project.settings.dispatcher import read_settings
from dispatcher_project.web.protocol import WebLimits
from dispatcher_project.web.server import make_server, within_descriptors
from foundation.program import INSTALLED_AS, program_name

APPLICATION = "dispatcher_project.asgi:application"
GRACE_SECONDS = 3


def parser() -> argparse.ArgumentParser:
    started_as = (
        f"{INSTALLED_AS} web" if program_name() == INSTALLED_AS else "python -m dispatcher_project.web"
    )
    made = argparse.ArgumentParser(
        prog=started_as, description="Serve the API, the event streams and the admin."
    )
    made.add_argument(
        "application", nargs="?", default=APPLICATION, metavar="MODULE:NAME", help="another ASGI application"
    )
    made.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    made.add_argument("--port", type=int, default=8000, help="port to listen on (default: 8000)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a stop signal, 2 for bad arguments or settings, 3 when it could not start."""
    options = parser().parse_args(arguments)
    try:
        check_proxies(os.environ.get("FORWARDED_ALLOW_IPS", ""))
        known = read_settings(environ.Env())
        limits = within_descriptors(WebLimits.of(known))
    except ImproperlyConfigured as error:
        sys.stderr.write(f"web: {error}\n")
        return 2
    if options.application != APPLICATION:
        sys.path.insert(0, "")
    server = make_server(
        options.application,
        limits,
        host=options.host,
        port=options.port,
        count=_count,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0 if server.started else STARTUP_FAILURE


def _count(ended: Mapping[str, int]) -> None:
    """Add the ended connections to the counters in the database. Called after Django's setup."""
    from django.db import connection

    from jobs.reports import counters

    counters.add_by_code_if_possible(counters.Name.WEB_ENDED, ended)
    connection.close()


def check_proxies(named: str) -> None:
    """Check FORWARDED_ALLOW_IPS; raise ImproperlyConfigured for a part that is no address or network.

    named: addresses and networks, separated by commas. uvicorn takes any other name for a unix socket, and
    then trusts no proxy. With `*`, which is refused too, any client could choose its own address.
    """
    for part in filter(None, (one.strip() for one in named.split(","))):
        try:
            ip_network(part)
        except ValueError:
            raise ImproperlyConfigured(
                f"FORWARDED_ALLOW_IPS must name the addresses or networks of your proxies, not {part!r}"
            ) from None


if __name__ == "__main__":
    sys.exit(main())
