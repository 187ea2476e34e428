"""Runs that no worker can poll: their server, placement or model is not registered any more, the server's
secret headers can't be read, or the model's runner is not installed.

The first kind can never be polled again, so its attempt ends at once; the others wait for an operator
who mends the cause, and end only if their cancel was asked for. Their slots stay shut until proven free.
"""

from __future__ import annotations

from django.db import transaction

from foundation.secrets import SecretUnreadable
from gpus.errors import ServerLost
from gpus.leasing.contract import Leases
from gpus.models import ModelConfig, Placement, Server
from gpus.protocol import ModelSpec, slot_name
from gpus.registry import queries as fleet
from gpus.runners.registry import find_runner
from jobs import transitions
from jobs.domain.retry import Ending
from jobs.execution import after_commit
from jobs.models import Attempt, Job
from jobs.ports import Ports
from jobs.transitions import End


def missing_part(server: str, model: str) -> str | None:
    """Return what is missing to ever poll this model's runs on this server, or None. Reads the database, not
    this process's cache."""
    if not Server.objects.filter(name=server).exists():
        return f"the server {server} is not registered any more"
    if not ModelConfig.objects.filter(name=model).exists():
        return f"the model {model} is not registered any more"
    if not Placement.objects.filter(server=server, model=model).exists():
        return f"{server} does not serve {model} any more"
    return None


def obstacle(server: str, model: str) -> str | None:
    """Return why no worker can poll this model's runs on this server now, or None."""
    gone = missing_part(server, model)
    if gone is None:
        try:
            fleet.read_headers(Server.objects.values_list("headers_encrypted", flat=True).get(name=server))
        except SecretUnreadable:
            return f"the secret headers of {server} can't be read"
        spec = fleet.model_spec(model)
        pinned = Server.objects.filter(name=server, host__isnull=False).exists()
        if spec is not None and not pinned and find_runner(spec.model_type) is None:
            return f"no runner {spec.model_type!r} is installed"
    return gone


def end(attempt: Attempt, why: str, leases: Leases, ports: Ports) -> bool:
    """Ends an attempt that nobody drives: LOST, or CANCELLED where that was asked for. Its slot stays shut
    until it is proven free, or goes with its server. False: somebody else moved the attempt first."""
    job = Job.objects.only("id", "pool", "max_retries").get(id=attempt.job_id)
    spec = fleet.model_spec(attempt.model) or ModelSpec(attempt.model, job.pool)
    now, slot = ports.clock.now(), slot_name(attempt.server, attempt.slot)
    ending = Ending(ServerLost(f"Nobody can reach its run: {why}."), suspect=True, unreachable=why)
    with transaction.atomic():
        ended = transitions.end_attempt(
            End(
                job_id=job.id,
                attempt_id=attempt.id,
                epoch=attempt.epoch,
                slot=slot,
                ending=ending,
                policy=after_commit.policy_for(spec, job.max_retries),
                at=now,
                gpu_seconds=max(0.0, (now - attempt.started_at).total_seconds()),
                run_limit_seconds=spec.run_limit_seconds,
            )
        )
    if ended.won:
        leases.quarantine(slot, attempt.id)
        if not Server.objects.filter(name=attempt.server).exists():
            leases.free_slot(slot)  # no row keeps it shut: it goes with its server
        after_commit.after_end(ended, ports)
    return ended.won
