"""One fleet's index of any layout, from outside: closing it, discarding it, and the signs of life in it.

Only keys whose meaning no layout may change are touched: `generation`, `rebuild`, `ticking` and `expiry`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from gpus.errors import LeasingUnavailable
from gpus.leasing import keys
from gpus.leasing.connect import connect
from gpus.leasing.scripts import FAILURES, Client, Scripts

MOST_ATTEMPTS = 100_000


@dataclass(frozen=True, slots=True)
class SignsOfLife:
    """closed_by: empty while the index is open, or gone. looked_seconds: since a sweep last looked for
    expired leases there; None: none ever did. renewed: attempts whose lease, or uncommitted end, was renewed
    less than a lease time ago."""

    closed_by: str
    looked_seconds: float | None
    renewed: tuple[str, ...]


class IndexGate:
    """now_ms, monotonic: as for `Scripts`. Every method raises LeasingUnavailable and may be called again."""

    def __init__(
        self,
        client: Client,
        fleet: str,
        layout: int,
        *,
        now_ms: Callable[[], int] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self._scripts = Scripts(client, keys.prefix(fleet, layout), now_ms=now_ms, monotonic=monotonic)

    def close(self, by: str) -> None:
        """Nothing is claimed there any more, by processes of any version, until it is discarded. Leases are
        still renewed, released and settled there. A Redis that restarts forgets it: close it again."""
        self._scripts.run("close_generation", owner=by)

    def discard(self) -> None:
        """It is not whole, and not closed: whoever may use it rebuilds it from the database."""
        self._scripts.run("discard_generation")

    def signs(self) -> SignsOfLife:
        closed_by, looked_us, *renewed = self._scripts.run("signs_of_life", limit=MOST_ATTEMPTS)
        looked = float(looked_us) / 1e6 if looked_us else None
        return SignsOfLife(str(closed_by), looked, tuple(map(str, renewed)))


class IndexGates:
    """Those of one Redis, made when they are first asked for; a forked child makes its own."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._gates: dict[tuple[int, str, int], IndexGate] = {}

    def __call__(self, fleet: str, layout: int) -> IndexGate:
        """Raises LeasingUnavailable where a cluster does not answer."""
        which = (os.getpid(), fleet, layout)
        with self._lock:
            if which not in self._gates:
                try:
                    self._gates[which] = IndexGate(connect(self._url()), fleet, layout)
                except FAILURES as error:
                    raise LeasingUnavailable(f"Redis does not answer: {error}") from error
            return self._gates[which]
