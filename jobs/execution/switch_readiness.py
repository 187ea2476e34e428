"""Whether a worker is ready for an index that switches to another key layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from gpus.errors import LeasingUnavailable
from gpus.protocol import LeaseRef
from jobs.execution.worker_state import ClaimsUnderWay
from jobs.models import Attempt
from jobs.ports import Ports

log = structlog.get_logger()

PAGE = 500
"""Attempts per statement."""


class SwitchReadiness:
    """Checks, before an index switches to another key layout, that the database has every start of this
    worker.

    held: returns refs of the fleet's leases that this process renews, with followers and uncommitted ends.
    claims: counts the claims under way.
    """

    def __init__(self, ports: Ports, held: Callable[[str], list[LeaseRef]], claims: ClaimsUnderWay) -> None:
        self._ports, self._held, self._claims = ports, held, claims

    def ready_switches(self) -> Mapping[str, str]:
        """Return, by fleet, the switches that may continue: the old index grants no lease any more, and all
        starts under its leases are committed. Raises DatabaseError."""
        return {
            fleet: switch
            for fleet, switch in self._ports.layouts.switches_away().items()
            if self._is_written(fleet)
        }

    def _is_written(self, fleet: str) -> bool:
        try:
            signs = self._ports.index_gate(fleet, self._ports.layouts.layout).activity()
        except LeasingUnavailable as error:
            log.info("index_switch_check_failed", fleet=fleet, error=str(error))
            return False
        # in this order: a closed index grants no claim, and an earlier claim counts until its lease is held
        if not signs.closed_by or self._claims.count:
            return False
        ids = [ref.attempt_id for ref in self._held(fleet)]
        pages = (ids[first : first + PAGE] for first in range(0, len(ids), PAGE))
        return sum(Attempt.objects.filter(id__in=page).count() for page in pages) == len(ids)
