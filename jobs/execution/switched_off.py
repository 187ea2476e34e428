"""Runs on servers that an operator switched off: stopped at their GPU, back in the line at no cost.

The lease layer gives such a server nothing new. What ran there is stopped by who drives it; a run that was
handed over or whose worker is gone is adopted first, because only its driver may cancel it, and is then
stopped like any other: it is adopted once, not for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpus.protocol import Lease
from gpus.registry.queries import forget
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.run_steps import Order


def interrupt_switched_off(runs: Iterable[tuple[Lease, AttemptRun]], off: Collection[str]) -> None:
    """off: the names of such servers."""
    if off:
        forget()  # claims that come before the lease layer knows must not begin what would be stopped at once
    for lease, run in runs:
        if lease.server in off:
            run.order(Order.INTERRUPT)
