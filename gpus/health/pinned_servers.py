"""Pinned servers: driven by a worker on their own host without HTTP, registered by it, healthy by its
heartbeats.

A worker's identity (`host`, also its `boot_id`) is its process: a second process with the same server name
takes the server over, and the first one's claims return no job from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpus.errors import LeasingUnavailable
from gpus.health.health import PARALLEL_PROBES, probe_all
from gpus.leasing.readings import clean_reading
from gpus.leasing.values import Heartbeat, Wakes
from gpus.models import ModelConfig, Placement, Server
from gpus.protocol import STARTED_HERE
from gpus.registry.index_sync import LeasesOf, mirror
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.queries import rows_changed
from gpus.registry.registry import register_server
from gpus.runners.base import Health, Transport

BEAT_SECONDS = 5.0
GONE_SECONDS = 15.0
"""After three missing heartbeats a worker counts as dead."""
STOPPED = "Its worker was stopped."


@dataclass(frozen=True, slots=True)
class Pinned:
    """Result of `register_pinned`. wakes: for the caller to send. mirrored: whether the lease layer is up to
    date."""

    server: Server
    wakes: tuple[Wakes, ...]
    mirrored: bool


def register_pinned(
    *,
    server: str,
    host: str,
    slots: int,
    models: Mapping[str, Mapping[str, Any]],
    pool: str,
    by: str,
    leases: LeasesOf,
    at: datetime,
    fleet: str | None = None,
    machine: str | None = None,
) -> Pinned:
    """Register a server that this worker process drives, with exactly these models. Raises RegistryRefused.

    host: identity of the process. models: fields by model name, used for new models only, so that an
    operator's configuration stays. pool: of new models; if some models are in a pool already, all must be in
    that pool. machine: group of servers that the server belongs to. by: audit actor.
    """
    _check_driver(server)
    known = dict(ModelConfig.objects.filter(name__in=list(models)).values_list("name", "pool"))
    pools = sorted(set(known.values()))
    if len(pools) > 1:
        raise RegistryRefused(
            "models_in_several_pools",
            f"The models of one worker share its slots and their pool; these are in {', '.join(pools)}.",
            pointer="/pool",
            status=409,
        )
    wakes: list[Wakes] = []
    for name, fields in models.items():
        wakes += register_server(
            model=name,
            server=server,
            endpoint=f"{STARTED_HERE}://{server}/{name}",
            slots=slots,
            pool=pools[0] if pools else pool,
            fleet=fleet,
            host=host,
            machine=machine,
            model_fields=None if name in known else dict(fields),
            by=by,
            leases=leases,
        ).wakes
    Placement.objects.filter(server=server).exclude(model__in=list(models)).delete()
    Server.objects.filter(name=server).update(boot_id=host, healthy=True, last_error="", checked_at=at)
    rows_changed.send(None)
    row = Server.objects.select_related("pool").get(name=server)
    more, mirrored = mirror(leases, row.pool, row)
    return Pinned(row, (*wakes, *more), mirrored)


def sign_off(server: str, host: str, *, leases: LeasesOf) -> None:
    """Mark a pinned server as unhealthy because its worker stops; no effect if another process drives it
    now."""
    mine = Server.objects.select_related("pool").filter(name=server, host=host)
    row = mine.first()
    if row is None:
        return
    with suppress(LeasingUnavailable):  # else its last heartbeat would count as alive for a while
        leases(row.pool.fleet).record_heartbeat(server, heartbeat_report(host, [], why=STOPPED))
    if mine.update(healthy=False, last_error=STOPPED):
        mirror(leases, row.pool, row)


def heartbeat_report(
    host: str,
    jobs: Iterable[tuple[str, str]],
    *,
    why: str = "",
    telemetry: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report of a worker's heartbeat.

    jobs: (job id, attempt id) that run in its process. why: reason why it cannot run jobs, or "". telemetry:
    of `gpu_host.local.telemetry.measure`.
    """
    reading = None if telemetry is None else clean_reading(telemetry)
    return {"boot_id": host, "jobs": [list(pair) for pair in jobs], "why": why, "telemetry": reading}


def recent_telemetry(beat: Heartbeat) -> Mapping[str, Any] | None:
    """The telemetry of a heartbeat, within the bounds of a reading, or None if it is missing or too old."""
    found = beat.report.get("telemetry")
    is_recent = beat.age_seconds <= GONE_SECONDS and isinstance(found, Mapping)
    return clean_reading(found) if is_recent else None


def health_from_heartbeat(beat: Heartbeat | None, server: Server, now: datetime) -> Health | None:
    """The health of a pinned server by its heartbeat.

    None: unknown, because its first heartbeat is not due yet (just registered, or Redis lost its data).
    """
    if beat is None or beat.report.get("boot_id") != server.host:
        since = None if server.checked_at is None else (now - server.checked_at).total_seconds()
        if since is not None and since < GONE_SECONDS:
            return None
        return Health(False, error="Its worker is not running: no heartbeat.")
    report = beat.report
    if beat.age_seconds > GONE_SECONDS:
        return Health(False, error="Its worker is gone: no heartbeat for more than 15 s.")
    jobs = frozenset((str(job), str(attempt)) for job, attempt in report["jobs"])
    return Health(
        ok=not report["why"],
        boot_id=str(report["boot_id"]),
        active_jobs=len(jobs),
        max_concurrent=server.slots,
        jobs=jobs,
        error=str(report["why"]),
        age_seconds=beat.age_seconds,
    )


def probe_with_heartbeats(
    asked: Iterable[tuple[Server, str]],
    *,
    leases: LeasesOf,
    now: datetime,
    transport: Transport | None = None,
    at_once: int = PARALLEL_PROBES,
) -> list[Health]:
    """Health of (server, model) pairs in order: pinned servers by heartbeats, others by `health.probe_all`.

    Reads the servers' pools and placements.
    """
    pairs = list(asked)
    beats, away = read_heartbeats([server for server, _ in pairs if server.host], leases)
    probed = iter(
        probe_all([pair for pair in pairs if not pair[0].host], transport=transport, at_once=at_once)
    )
    answers = []
    for server, _ in pairs:
        if not server.host:
            answers.append(next(probed))
            continue
        found = (
            None if server.pool.fleet in away else health_from_heartbeat(beats.get(server.name), server, now)
        )
        answers.append(found or last_known_health(server))
    return answers


def last_known_health(server: Server) -> Health:
    """The health that is stored on the server's row."""
    return Health(server.healthy is not False, boot_id=server.boot_id, error=server.last_error)


def read_heartbeats(servers: Sequence[Server], leases: LeasesOf) -> tuple[dict[str, Heartbeat], set[str]]:
    """Heartbeats by server, and the fleets whose Redis does not answer."""
    by_fleet: dict[str, list[str]] = {}
    for server in servers:
        by_fleet.setdefault(server.pool.fleet, []).append(server.name)
    found: dict[str, Heartbeat] = {}
    away: set[str] = set()
    for fleet, names in by_fleet.items():
        try:
            found |= leases(fleet).heartbeats(names)
        except LeasingUnavailable:
            away.add(fleet)
    return found, away


def _check_driver(server: str) -> None:
    row = Server.objects.filter(name=server).first()
    if row is None or row.host is not None:
        return
    if row.placements.exists():
        raise RegistryRefused(
            "server_is_not_pinned",
            f"{server} is a server with HTTP endpoints: choose another --name.",
            pointer="/server",
            status=409,
        )
