"""Leases that their worker no longer renews, and ends of attempts whose commit it never confirmed.

The worker is dead, unless its heartbeat in the database says that it lives but can't renew: then the leases
are kept, and the worker writes the ends. Expiry alone never frees a slot. The attempt's row decides:

| in Redis | attempt row | decision |
| --- | --- | --- |
| uncommitted end | final | the end is confirmed |
| uncommitted end | live or none | LOST; the GPU had answered, unless the slot was returned as suspect |
| lease | WAITING | adoptable: the next worker that claims goes on polling it |
| lease | SENT | LOST, slot quarantined |
| lease | none | the same, and the row is written (*) |
| lease | final | slot free if its end, or a probe since then, proved that, else quarantined |

(*) A model that runs at most once: slot free, because no request is sent before the start is committed.

When the previous attempt is COMPLETED, the prefetched one (`follower`) has begun. Its lease expires
separately and is handled then. Otherwise its job is queued again without a charge. Its worker may have died
while sending it, so the slot's quarantine row names it as well.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import structlog
from django.db import transaction

from foundation.database import statements
from gpus.leasing.contract import Leases
from gpus.leasing.values import ExpiredLease
from gpus.models import QuarantinedSlot
from gpus.protocol import ExpiryVerdict, LeaseRef, ReleaseMode, split_slot
from gpus.registry import processes
from jobs import transitions
from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState
from jobs.execution import follow_ups
from jobs.execution.worker_heartbeats import Heartbeat, last_heartbeat
from jobs.models import Attempt
from jobs.operations.end_lost_attempt import Loss, lose_attempt, lose_unwritten
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree, sweep_fleets, sweep_rows
from jobs.transitions import Ended, StartOutcome

log = structlog.get_logger(__name__)

LIMIT = 300
DIED_BEFORE_COMMIT = "Its worker died before the end of the run was written."
GONE = "Its worker is gone; whether the run ended is unknown."
GONE_AT_START = "Its worker is gone; whether the run began is unknown."
NOT_HELD = "Its worker lives, but no longer holds the run; whether it ended is unknown."
"""For example after a database failover to a standby that lacks the end."""
LOSS_MESSAGES = (DIED_BEFORE_COMMIT, GONE, GONE_AT_START, NOT_HELD)
"""Error messages of the attempts that this sweep ends."""
SWEEPER = "sweep"
"""Worker name under which this sweep briefly holds a lease."""

_of_id = statements.Read(lambda: Attempt.objects.filter(id=statements.value(Attempt, "id")))


def sweep(ports: Ports) -> SweepCount:
    """repaired: leases resolved and ends confirmed."""

    def step(_fleet: str, leases: Leases) -> SweepCount:
        # unconfirmed ends first: a slot's next start is refused while the end before it is not written
        expired = sorted(leases.expired(LIMIT), key=lambda lease: not lease.is_ending)
        return sweep_rows("expired_leases", expired, lambda lease: _resolve(lease, leases, ports))

    return sweep_fleets("expired_leases", ports, step)


def _resolve(expired: ExpiredLease, leases: Leases, ports: Ports) -> bool:
    ref = expired.ref
    attempt: Attempt | None = _of_id.first(id=ref.attempt_id)
    # a lease that was restored from the database has no worker name
    heartbeat = last_heartbeat(expired.worker or (attempt.worker if attempt else ""), ports.clock.now())
    if ref.attempt_id in heartbeat.cut_off and (attempt is None or attempt.state in LIVE_ATTEMPT_STATES):
        leases.extend_lease(ref)
        log.info(
            "lease_kept", job_id=ref.job_id, attempt=ref.attempt_id, slot=ref.slot, worker=expired.worker
        )
        return False
    if attempt is not None and _is_renewed_in_older_index(attempt, ports):
        leases.extend_lease(ref)
        return False
    log.info(
        "lease_expired",
        job_id=ref.job_id,
        attempt=ref.attempt_id,
        epoch=ref.epoch,
        slot=ref.slot,
        worker=expired.worker,
        settling=expired.is_ending,
        found=attempt.state if attempt else "unwritten",
    )
    if expired.is_ending:
        return _resolve_uncommitted_end(expired, attempt, heartbeat, leases, ports)
    if expired.follower is not None:
        if attempt is not None and attempt.state == AttemptState.COMPLETED:
            return leases.resolve_expired(ref, ExpiryVerdict.FOLLOWED)
        resolved = _resolve_holder(expired, attempt, heartbeat, leases, ports)
        follow_ups.push_waiting(expired.follower.job_id, ports)
        return resolved
    return _resolve_holder(expired, attempt, heartbeat, leases, ports)


def _is_renewed_in_older_index(attempt: Attempt, ports: Ports) -> bool:
    """Return True if its living worker renews it in the index of an older key layout.

    Also True while clocks disagree: if the database's clock is ahead, every heartbeat looks too old.
    """
    if attempt.state not in LIVE_ATTEMPT_STATES or not processes.is_known_in_other_layout(
        attempt.worker, ports.layouts.layout
    ):
        return False
    lives = processes.is_live_in_other_layout(attempt.worker, ports.layouts.layout)
    return lives or clocks_disagree(ports) is not None


def _resolve_holder(
    expired: ExpiredLease, attempt: Attempt | None, heartbeat: Heartbeat, leases: Leases, ports: Ports
) -> bool:
    ref = expired.ref
    if attempt is None:
        return _resolve_unwritten(expired, heartbeat, leases, ports)
    if attempt.state == AttemptState.WAITING:
        return _make_adoptable(ref, attempt.epoch, leases)
    if attempt.state in LIVE_ATTEMPT_STATES:
        ended = lose_attempt(_loss(expired, heartbeat, NOT_HELD if heartbeat.is_alive else GONE), ports)
        _record_follower(expired, ports)
        return _resolve_as(ExpiryVerdict.QUARANTINED, ref, ended, leases, ports)
    return _resolve_as(_verdict_on_final(attempt, expired, ports), ref, Ended(won=False), leases, ports)


def _resolve_uncommitted_end(
    expired: ExpiredLease, attempt: Attempt | None, heartbeat: Heartbeat, leases: Leases, ports: Ports
) -> bool:
    """Resolve an end whose commit was never confirmed."""
    suspect = _was_returned_as_suspect(expired.ref, leases)
    loss = _loss(expired, heartbeat, NOT_HELD if heartbeat.is_alive else DIED_BEFORE_COMMIT, suspect=suspect)
    if not suspect:
        loss = replace(loss, evidence="its worker had released the slot")
    ended = Ended(won=False)
    if attempt is None:
        outcome, ended = lose_unwritten(loss, expired.worker, ports)
        if suspect and outcome is not StartOutcome.STARTED:
            _write_quarantine(expired, f"lost start, {outcome}", ports)
    elif attempt.state in LIVE_ATTEMPT_STATES:
        ended = lose_attempt(loss, ports)
    ports.send_wakes(leases.confirm_ends([expired.ref]))
    _follow_up(ended, expired.ref, ports)
    return True


def _was_returned_as_suspect(ref: LeaseRef, leases: Leases) -> bool:
    """Return True if the worker returned the slot as suspect, because the GPU had not answered."""
    views = leases.slots(split_slot(ref.slot)[0])
    return any(
        (view.slot, view.attempt_id, view.state) == (ref.slot, ref.attempt_id, "quarantined")
        for view in views
    )


def _resolve_unwritten(expired: ExpiredLease, heartbeat: Heartbeat, leases: Leases, ports: Ports) -> bool:
    ref = expired.ref
    if ports.registry.spec_or_defaults(expired.model, expired.pool).at_most_once:
        return _resolve_as(ExpiryVerdict.FREE, ref, Ended(won=False), leases, ports)
    outcome, ended = lose_unwritten(_loss(expired, heartbeat, GONE_AT_START), expired.worker, ports)
    if outcome is not StartOutcome.STARTED:
        _write_quarantine(expired, f"lost start, {outcome}", ports)
    _record_follower(expired, ports)
    return _resolve_as(ExpiryVerdict.QUARANTINED, ref, ended, leases, ports)


def _record_follower(expired: ExpiredLease, ports: Ports) -> None:
    """Add the prefetched attempt to the slot's quarantine row, which was just written."""
    if expired.follower is None:
        return
    server, slot = split_slot(expired.ref.slot)
    spec = ports.registry.spec_or_defaults(expired.follower.model, expired.pool)
    limit = timedelta(seconds=spec.run_limit_seconds)
    for row in QuarantinedSlot.objects.filter(
        server_id=server, slot=slot, attempt_id=expired.ref.attempt_id, freed_at=None
    ):
        row.follower_attempt_id = expired.follower.attempt_id
        row.until = max(row.until, row.since + limit)
        row.save(update_fields=["follower_attempt_id", "until"])


def _make_adoptable(ref: LeaseRef, epoch: int, leases: Leases) -> bool:
    """Make the lease adoptable under the row's epoch.

    epoch: from the row. It is higher than the lease's if a worker died in the middle of an adoption.
    """
    if not leases.resolve_expired(ref, ExpiryVerdict.ADOPTABLE):
        return False
    if epoch > ref.epoch and leases.take_over(ref, worker=SWEEPER, new_epoch=epoch):
        current = LeaseRef(ref.slot, ref.job_id, ref.attempt_id, epoch)
        leases.release(current, ReleaseMode.ADOPT, worker=SWEEPER)
    return True


def _verdict_on_final(attempt: Attempt, expired: ExpiredLease, ports: Ports) -> ExpiryVerdict:
    if attempt.slot_freed:
        return ExpiryVerdict.FREE
    server, slot = split_slot(expired.ref.slot)
    rows = QuarantinedSlot.objects.filter(server_id=server, slot=slot)
    if rows.filter(freed_at=None).exists():
        return ExpiryVerdict.QUARANTINED
    if rows.filter(attempt_id=attempt.id).exists():
        return ExpiryVerdict.FREE  # proven free since its end
    _write_quarantine(expired, attempt.error_code or "uncertain end", ports)
    return ExpiryVerdict.QUARANTINED


def _resolve_as(verdict: ExpiryVerdict, ref: LeaseRef, ended: Ended, leases: Leases, ports: Ports) -> bool:
    """Resolve the lease. Return False if its holder renewed it meanwhile: the holder learns from the row that
    its attempt has ended."""
    resolved = leases.resolve_expired(ref, verdict)
    _follow_up(ended, ref, ports)
    return resolved


def _follow_up(ended: Ended, ref: LeaseRef, ports: Ports) -> None:
    """If the attempt ended here, announce it. Otherwise, if the job is QUEUED, push its ticket again: the
    claim had removed it."""
    if ended.won:
        follow_ups.after_end(ended, ports)
        return
    follow_ups.push_waiting(ref.job_id, ports)


def _write_quarantine(expired: ExpiredLease, reason: str, ports: Ports) -> None:
    ref = expired.ref
    with transaction.atomic():
        transitions.quarantine_slot(
            ref.slot,
            attempt_id=ref.attempt_id,
            job_id=ref.job_id,
            model=expired.model,
            reason=reason,
            at=ports.clock.now(),
            run_limit_seconds=ports.registry.spec_or_defaults(expired.model, expired.pool).run_limit_seconds,
        )


def _loss(expired: ExpiredLease, heartbeat: Heartbeat, why: str, *, suspect: bool = True) -> Loss:
    ref = expired.ref
    return Loss(
        job_id=ref.job_id,
        attempt_id=ref.attempt_id,
        slot=ref.slot,
        model=expired.model,
        pool=expired.pool,
        why=why,
        suspect=suspect,
        process_died=not heartbeat.is_alive,
        held_seconds=expired.held_seconds,
    )
