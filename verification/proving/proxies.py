"""The trial's interface to the proxy process (proxy.py)."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from verification.proving.children import Children


class Proxies:
    """The routes of the proxy process. targets: ``host:port`` by name."""

    def __init__(self, children: Children, targets: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "verification.proving.proxy"]
        self._child = children.start(
            "proxy", *command, *(f"{name}={target}" for name, target in targets.items()), talks=True
        )
        self._ports: dict[str, int] = {name: int(port) for name, port in self._child.receive().items()}

    def port(self, name: str) -> int:
        return self._ports[name]

    def silence(self, name: str) -> None:
        """Stop forwarding, without closing connections."""
        self._child.ask(do="silence", name=name)

    def cut(self, name: str) -> None:
        """Reset every connection; accept new ones."""
        self._child.ask(do="cut", name=name)

    def close(self, name: str) -> None:
        """Reset every connection; refuse new ones."""
        self._child.ask(do="close", name=name)

    def aim(self, name: str, port: int) -> None:
        """Forward new connections to that port of this machine."""
        self._child.ask(do="aim", name=name, port=port)

    def slow(self, name: str, seconds: float) -> None:
        """Forward each piece of bytes so much later, in both directions."""
        self._child.ask(do="slow", name=name, seconds=seconds)

    def hold(self, name: str, request: str, forwards: int) -> None:
        """Hold the next request whose beginning matches the regular expression, once so many of its bytes are
        forwarded."""
        self._child.ask(do="hold", name=name, request=request, bytes=forwards)

    def held(self, name: str) -> int:
        """Return how many requests are held."""
        return int(self._child.ask(do="held", name=name)["held"])

    def forward_held(self, name: str) -> None:
        """Forward the held requests; hold no further one."""
        self._child.ask(do="forward_held", name=name)

    def heal(self, name: str) -> None:
        """Forward normally again."""
        self._child.ask(do="heal", name=name)
