"""Submits of many clients in one transaction: what it costs to commit, and to tell Redis, they share.

Each is checked, refused or made as `submit_job` would do it by itself. None of them may make the others wait:
who would ask Redis or a name server first comes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import DatabaseError, DataError, IntegrityError, InterfaceError

from jobs.limits.queue_limits import QueueLimits
from jobs.limits.tenant_limits import limits_of
from jobs.ports import Ports
from jobs.submission.checks import Allowed, checked_unless_known
from jobs.submission.enqueue import placed
from jobs.submission.idempotency import known_keys
from jobs.submission.insert import Entry, Gate, store
from jobs.submission.outcomes import Item
from jobs.submission.request import SubmitRequest

TURN_SECONDS = 0.25
"""How long a transaction that is many clients' waits for a limit that somebody else counts."""
_REFUSALS = ("22", "23", "40", "54", "55")
"""SQLSTATE classes: data, integrity, rolled back, too much, a lock that was not to be had in time."""
_COMMITTED_OR_NOT = "40003"


class NotTogether(Exception):
    """None of them is stored. The database, or a defect of ours, refused one; each may come alone."""


@dataclass(frozen=True, slots=True)
class Submit:
    """One client's. key_models: those that the API key may submit to; None: all of the tenant's. asked_by:
    what the log says besides."""

    request: SubmitRequest
    tenant_id: int
    key_models: frozenset[str] | None = None
    asked_by: Mapping[str, Any] = field(default_factory=dict)


def submit_together(submits: Sequence[Submit], ports: Ports) -> list[Item]:
    """What became of each, in order. Raises NotTogether; and OperationalError while the database is away:
    nobody knows then whether they are stored."""
    try:
        items = store(_entries(submits, ports.clock.now()))
    except Exception as error:
        if _was_refused(error):
            raise NotTogether from error
        raise
    return list(placed(items, ports))


def _entries(submits: Sequence[Submit], now: datetime) -> list[Entry]:
    by_tenant: dict[int, list[SubmitRequest]] = {}
    for one in submits:
        by_tenant.setdefault(one.tenant_id, []).append(one.request)
    known = {tenant_id: known_keys(tenant_id, requests) for tenant_id, requests in by_tenant.items()}
    checked = [
        checked_unless_known(
            one.request,
            known[one.tenant_id],
            Allowed(limits_of(one.tenant_id).allowed_models, one.key_models),
            now,
        )
        for one in submits
    ]
    asking = [
        (one.tenant_id, request.body.model)
        for one, request in zip(submits, checked, strict=True)
        if isinstance(request, SubmitRequest)
    ]
    room = QueueLimits(now, asking, patience_seconds=TURN_SECONDS)
    gates = {tenant_id: Gate(tenant_id, now, room) for tenant_id in by_tenant}
    return [
        Entry(request, gates[one.tenant_id], known[one.tenant_id], one.asked_by)
        for one, request in zip(submits, checked, strict=True)
    ]


def _was_refused(error: Exception) -> bool:
    """Whether nothing is stored for sure, and the database is there. What is no answer of the database was
    raised before it was told to commit."""
    if not isinstance(error, (DatabaseError, InterfaceError)):
        return True
    state = getattr(error.__cause__, "sqlstate", None) or ""
    if state == _COMMITTED_OR_NOT:
        return False
    return isinstance(error, (IntegrityError, DataError)) or state[:2] in _REFUSALS
