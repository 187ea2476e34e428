"""Signals: they end the waits of a tenant's runs that have their name, at once and in one transaction.

The body is copied to every node that takes it, so the size of all copies is limited. A request with an
Idempotency-Key has an effect once: `SentSignal` is written with what it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q

from artifacts.uses import add_run_uses, kept_refs
from foundation.database.connections import write_lock
from foundation.json_text import canonical_json
from gpus.registry.audit import record
from jobs.domain.errors import Refused
from jobs.ports import Ports
from jobs.submission.artifact_refs import confirm_uploads
from jobs.submission.request import KeyedRequest
from workflows.domain.errors import SignalTooLarge
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState
from workflows.execution.runs import check_value
from workflows.execution.waits import size_of_answer, write_ends
from workflows.models import Wait, follower_of
from workflows.operations.sent_keys import earlier_sent, note_key

_BATCH = 500
"""Waits of one statement, and runs of one hint."""
USE_BYTES = 400
"""What the use of an artifact by a run counts like: 40,000 of them take half a second to write."""


@dataclass(frozen=True, slots=True)
class TakenSignal:
    """How many nodes took a signal. replayed: that of an earlier request with the same key."""

    taken: int
    replayed: bool = False


def send_signal(
    tenant_id: int,
    name: str,
    body: Any,
    *,
    ports: Ports,
    run_id: str | None = None,
    idempotency_key: KeyedRequest | None = None,
    by: str | None = None,
) -> TakenSignal:
    """Give a signal to all waits of the tenant's runs for it, or of one run.

    Waits whose schema the body does not match are left. by: the operator, for the audit. Raises AnswerInvalid
    if that is all of them, AnswerTooLarge, SignalTooLarge, ArtifactStoreUnavailable, TooManySignals,
    IdempotencyConflict.
    """
    size = size_of_answer(body, "/body")
    if idempotency_key is not None and (earlier := _earlier(tenant_id, idempotency_key)) is not None:
        return earlier
    signal = _Signal(tenant_id, name, body, run_id, idempotency_key, by)
    waits, refusal = signal.matching(ports)
    size += USE_BYTES * len(kept_refs(body))
    if size * len(waits) > (most := settings.DISPATCHER.workflow_signal_bytes):
        raise SignalTooLarge(
            f"{len(waits)} nodes wait for this signal, and the copies of its body, {size} bytes each with "
            f"{USE_BYTES} for each artifact, may have {most} bytes in all "
            "(DISPATCHER_WORKFLOW_SIGNAL_BYTES). Upload the data as an artifact and refer to it, or name one "
            "run with run_id.",
            pointer="/body",
        )
    if waits:
        confirm_uploads(body, tenant_id, ports.clock.now(), ports, "/body")
    try:
        ended = signal.write(waits, refusal, ports.clock.now())
    except IntegrityError:
        if idempotency_key is None or (earlier := _earlier(tenant_id, idempotency_key)) is None:
            raise
        return earlier  # another request with this key was faster
    followers = sorted(set(ended))
    for first in range(0, len(followers), _BATCH):
        ports.wake_followers(followers[first : first + _BATCH])
    return TakenSignal(len(ended))


@dataclass(frozen=True, slots=True)
class _Signal:
    """A signal as it was sent."""

    tenant_id: int
    name: str
    body: Any
    run_id: str | None
    idempotency_key: KeyedRequest | None
    by: str | None

    def matching(self, ports: Ports) -> tuple[list[Wait], Refused | None]:
        """Return the open waits whose schema the body matches, and why another one does not take it."""
        waits = Wait.objects.select_related("node").filter(
            kind=NodeKind.SIGNAL.value,
            signal=self.name,
            answered_at=None,
            node__run__tenant_id=self.tenant_id,
        )
        # an expired wait is over for signals, as for answers, though no sweep has ended it yet
        waits = waits.filter(Q(due_at=None) | Q(due_at__gt=ports.clock.now()))
        if self.run_id is not None:
            waits = waits.filter(node__run_id=self.run_id)
        found, refusals = list[Wait](), dict[bytes, Refused | None]()
        for wait in waits.only("options", "node__run_id").order_by("node_id").iterator(_BATCH):
            schema = wait.options.get("body_schema", True)
            mark = hashlib.sha256(canonical_json(schema).encode()).digest()
            if mark not in refusals:  # the waits of a version have one schema
                refusals[mark] = _refusal(schema, self.body, ports)
            if refusals[mark] is None:
                wait.options = {}  # of 10,000 waits they would be large
                found.append(wait)
        return found, next(filter(None, refusals.values()), None)

    def write(self, waits: Sequence[Wait], refusal: Refused | None, now: datetime) -> list[str]:
        """End these waits; return the followers of those that had not ended. refusal: is raised if none had.
        Raises IntegrityError if another request with the key was faster."""
        ended = list[str]()
        with write_lock(len(waits)), transaction.atomic():
            sent = (
                None if self.idempotency_key is None else note_key(self.tenant_id, self.idempotency_key, now)
            )
            for first in range(0, len(waits), _BATCH):
                batch = waits[first : first + _BATCH]
                ended += write_ends(batch, NodeState.COMPLETED, self.body, by="signal", now=now)
            if refusal is not None and not ended:
                raise refusal
            runs = {follower_of(wait.node.run_id): wait.node.run_id for wait in waits}
            taken_by = sorted({runs[follower] for follower in ended})
            # after all waits are locked: transactions that lock both do it in one order
            add_run_uses(taken_by, self.tenant_id, self.body)
            if sent is not None:
                sent.taken = len(ended)
                sent.save(update_fields=["taken"])
            if ended:
                target = f"run:{self.run_id}" if self.run_id is not None else f"signal:{self.name}"
                detail = {"tenant": self.tenant_id, "signal": self.name, "waits": len(ended)}
                record(self.by, "send_signal", target, **detail)
        return ended


def _refusal(schema: Any, body: Any, ports: Ports) -> Refused | None:
    try:
        check_value(schema, body, ports, "/body")
    except Refused as refused:
        return refused
    return None


def _earlier(tenant_id: int, idempotency_key: KeyedRequest) -> TakenSignal | None:
    """Return what an earlier request with this key did. Raises IdempotencyConflict for another request."""
    sent = earlier_sent(tenant_id, idempotency_key)
    return None if sent is None else TakenSignal(sent.taken, replayed=True)
