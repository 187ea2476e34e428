"""Runs on servers that an operator switched off: stopped at their GPU, back in the line at no cost.

The lease layer gives such a server nothing new. What ran there is stopped by who drives it; a run that was
handed over or whose worker is gone is adopted first, because only its driver may cancel it, and is then
stopped like any other: it is adopted once, not for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpus.models import Server, prepared
from gpus.protocol import DesiredState, Lease
from gpus.queries import forget
from jobs.services.runs import AttemptRun
from jobs.services.steps import Order

_off_among = prepared.ReadAmong(
    Server,
    "name",
    lambda names: Server.objects.filter(name__in=names, desired=DesiredState.OFF).values_list(
        "name", flat=True
    ),
)


def interrupt_switched_off(runs: Iterable[tuple[Lease, AttemptRun]]) -> None:
    """One short read for all of them."""
    held = list(runs)
    off = set(_off_among(sorted({lease.server for lease, _ in held})))
    if off:
        forget()  # claims that come before the lease layer knows must not begin what would be stopped at once
    for lease, run in held:
        if lease.server in off:
            run.order(Order.INTERRUPT)
