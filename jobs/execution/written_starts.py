"""Whether the database knows all that this worker holds: before its index is switched to another layout."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog

from gpus.errors import LeasingUnavailable
from gpus.protocol import LeaseRef
from jobs.models import Attempt
from jobs.ports import Ports

log = structlog.get_logger()

PAGE = 500


class WrittenStarts:
    """held: refs of the fleet's leases that this process renews, followers and uncommitted ends too."""

    def __init__(self, ports: Ports, held: Callable[[str], list[LeaseRef]]) -> None:
        self._ports, self._held = ports, held
        self._lock = threading.Lock()
        self._asking = 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around each claim, until the lease that it gave is held or given back."""
        with self._lock:
            self._asking += 1
        try:
            yield
        finally:
            with self._lock:
                self._asking -= 1

    def ready(self) -> Mapping[str, str]:
        """The switches that may go on, by fleet: their index gives nothing any more, and every start under a
        lease of theirs is written. Raises what a database does that is away."""
        return {
            fleet: switch for fleet, switch in self._ports.layouts.left().items() if self._is_written(fleet)
        }

    def _is_written(self, fleet: str) -> bool:
        try:
            signs = self._ports.index_gate(fleet, self._ports.layouts.layout).signs()
        except LeasingUnavailable as error:
            log.info("switch_not_answered", fleet=fleet, error=str(error))
            return False
        # in this order: once it is closed no claim is granted, and who asked before has what it got
        if not signs.closed_by or self._asking:
            return False
        ids = [ref.attempt_id for ref in self._held(fleet)]
        pages = (ids[first : first + PAGE] for first in range(0, len(ids), PAGE))
        return sum(Attempt.objects.filter(id__in=page).count() for page in pages) == len(ids)
