"""Runs that no worker can poll, and slots whose last run ended without a proof that it is over.

A run can't be polled if its server, placement or model is not registered any more, if the server's secret
headers can't be read, or if the model's runner is not installed. In the first case its attempt ends at once.
In the others it waits until an operator repairs the cause, and ends only if its cancel was requested. The
slot stays in quarantine until it is proven free.

A quarantine's row belongs to its server, so it can't be written while the server is not registered. It is
written in the transaction that registers the server again, before the index has the server. A rebuild of the
index and the sweep `lock_sync` check again, because an end and a registration that commit at the same moment
do not see each other.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.signals import post_save

from foundation.database import statements
from foundation.secrets import SecretUnreadable
from gpus.errors import ServerLost
from gpus.leasing.contract import Leases
from gpus.models import AuditEntry, ModelConfig, Placement, QuarantinedSlot, Server
from gpus.protocol import slot_name
from gpus.registry import queries
from gpus.registry.quarantine import slot_proven_free
from gpus.runners.registry import find_runner
from jobs import transitions
from jobs.domain.retry import Ending
from jobs.domain.states import LIVE_ATTEMPT_STATES
from jobs.execution import follow_ups
from jobs.models import Attempt, Job
from jobs.ports import Ports
from jobs.transitions import End

_last_of_slot = statements.Read(
    lambda: (
        Attempt.objects.filter(
            server=statements.value(Attempt, "server"), slot=statements.value(Attempt, "slot")
        )
        .select_related("job")
        .defer("job__payload", "job__result")
        .order_by("-started_at")[:1]
    )
)


def missing_registration(server: str, model: str) -> str | None:
    """Return a sentence that names the missing registration without which this model's runs on this server
    can't be polled, or None. Reads the database, not this process's cache."""
    if not Server.objects.filter(name=server).exists():
        return f"the server {server} is not registered any more"
    if not ModelConfig.objects.filter(name=model).exists():
        return f"the model {model} is not registered any more"
    if not Placement.objects.filter(server=server, model=model).exists():
        return f"{server} does not serve {model} any more"
    return None


def why_unreachable(server: str, model: str) -> str | None:
    """Return a sentence that says why no worker can poll this model's runs on this server, or None."""
    gone = missing_registration(server, model)
    if gone is None:
        try:
            queries.read_headers(Server.objects.values_list("headers_encrypted", flat=True).get(name=server))
        except SecretUnreadable:
            return f"the secret headers of {server} can't be read"
        spec = queries.model_spec(model)
        pinned = Server.objects.filter(name=server, host__isnull=False).exists()
        if spec is not None and not pinned and find_runner(spec.model_type) is None:
            return f"no runner {spec.model_type!r} is installed"
    return gone


def end_unreachable(attempt: Attempt, why: str, leases: Leases, ports: Ports) -> bool:
    """End an attempt that no worker can poll: LOST, or CANCELLED if a cancel was requested.

    Its slot stays in quarantine until it is proven free, or vanishes with its server. why: as of
    `why_unreachable`. Returns False if another process moved the attempt first.
    """
    job = Job.objects.only("id", "pool", "max_retries").get(id=attempt.job_id)
    spec = ports.registry.spec_or_defaults(attempt.model, job.pool)
    now, slot = ports.clock.now(), slot_name(attempt.server, attempt.slot)
    ending = Ending(ServerLost(f"No worker can reach its run: {why}."), suspect=True, unreachable=why)
    with transaction.atomic():
        ended = transitions.end_attempt(
            End(
                job_id=job.id,
                attempt_id=attempt.id,
                epoch=attempt.epoch,
                slot=slot,
                ending=ending,
                policy=follow_ups.policy_for(spec, job.max_retries),
                at=now,
                gpu_seconds=max(0.0, (now - attempt.started_at).total_seconds()),
                run_limit_seconds=spec.run_limit_seconds,
            )
        )
    if ended.won:
        leases.quarantine(slot, attempt.id)
        if not Server.objects.filter(name=attempt.server).exists():
            leases.free_slot(slot)  # the slot vanishes with its server: no row can keep it in quarantine
        follow_ups.after_end(ended, ports)
    return ended.won


def last_attempt_on(server: str, slot: int) -> Attempt | None:
    """Return the attempt that started last on this slot."""
    found: Attempt | None = _last_of_slot.first(server=server, slot=slot)
    return found


def quarantine_unproven(server: Server, slot: int) -> bool:
    """Write the quarantine that the slot's last attempt lacks.

    Returns False if it needs none: it is live (in this server's fleet, whose index then holds the slot), has
    its row, or was proven over.
    """
    last = last_attempt_on(server.name, slot)
    if last is None or last.slot_freed or _lives_here(last, server) or _was_judged(last, server):
        return False
    spec = queries.spec_or_defaults(last.model, server.pool_id)
    with transaction.atomic():
        transitions.quarantine_slot(
            slot_name(server.name, slot),
            attempt_id=last.id,
            job_id=last.job_id,
            model=last.model,
            reason=last.error_code or "uncertain end",
            at=last.finished_at or last.started_at,
            run_limit_seconds=spec.run_limit_seconds,
        )
    return True


def _lives_here(attempt: Attempt, server: Server) -> bool:
    return attempt.state in LIVE_ATTEMPT_STATES and attempt.job.fleet == server.pool.fleet


def _was_judged(attempt: Attempt, server: Server) -> bool:
    """Return True if the attempt has a row, or had one that proved it over before the server was removed."""
    rows = QuarantinedSlot.objects.filter(server=server, slot=attempt.slot, attempt_id=attempt.id)
    if rows.exists():
        return True
    removals = AuditEntry.objects.filter(target=f"server:{server.name}", action="remove_server")
    return any(
        attempt.id in detail.get("proven_gone", ()) for detail in removals.values_list("detail", flat=True)
    )


def _on_registration(instance: Server, *, created: bool, raw: bool, **_: Any) -> None:
    # most servers are new: skip their up to a thousand slots
    if created and not raw and Attempt.objects.filter(server=instance.name).exists():
        for slot in range(instance.slots):
            quarantine_unproven(instance, slot)


post_save.connect(_on_registration, sender=Server, dispatch_uid="keep-unproven-slots-shut")


def _on_proof(row: QuarantinedSlot, evidence: str, **_: Any) -> None:
    proven = [attempt_id for attempt_id in (row.attempt_id, row.follower_attempt_id) if attempt_id]
    still_open = QuarantinedSlot.objects.filter(attempt_id=row.follower_attempt_id, freed_at=None)
    if row.follower_attempt_id and still_open.exists():
        proven.remove(row.follower_attempt_id)  # the follower has a row of its own, which needs its own proof
    Attempt.objects.filter(id__in=proven, finished_at__isnull=False, slot_freed=False, evidence="").update(
        evidence=evidence
    )


slot_proven_free.connect(_on_proof, sender=QuarantinedSlot, dispatch_uid="keep-late-proofs")
