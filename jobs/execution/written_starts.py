"""Checks that the database has every start under this worker's leases, before an index switch to another
layout."""

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
        self._claiming = 0

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Enclose each claim, until its lease is held or given back."""
        with self._lock:
            self._claiming += 1
        try:
            yield
        finally:
            with self._lock:
                self._claiming -= 1

    def ready_switches(self) -> Mapping[str, str]:
        """Return the switches that may go on, by fleet: their index grants nothing any more, and every start
        under its leases is written. Raises DatabaseError."""
        return {
            fleet: switch for fleet, switch in self._ports.layouts.left().items() if self._is_written(fleet)
        }

    def _is_written(self, fleet: str) -> bool:
        try:
            signs = self._ports.index_gate(fleet, self._ports.layouts.layout).signs()
        except LeasingUnavailable as error:
            log.info("switch_not_answered", fleet=fleet, error=str(error))
            return False
        # in this order: a closed index grants no claim, and an earlier claim is counted until its lease is
        # held
        if not signs.closed_by or self._claiming:
            return False
        ids = [ref.attempt_id for ref in self._held(fleet)]
        pages = (ids[first : first + PAGE] for first in range(0, len(ids), PAGE))
        return sum(Attempt.objects.filter(id__in=page).count() for page in pages) == len(ids)
