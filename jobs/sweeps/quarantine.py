"""Quarantined slots, whose GPU may still run an attempt without a worker: probes their servers until a slot
is proven free.

`jobs.transitions.attempts` writes their rows, with the uncertain end of the attempt. A row is closed before
the slot is freed in Redis: after a crash in between, `lock_sync` frees the slot. In the other order the slot
could be leased while its row is open. What counts as a proof is in `gpus.health.evidence`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db.models import Count, F, Max, Min, Q

from foundation.database import statements
from foundation.database.statements import value
from gpus.errors import LeasingUnavailable
from gpus.health.evidence import Suspect, past_run_limit, proven_by_count, proven_by_health
from gpus.health.health import health_url, health_urls, is_restart, record_health
from gpus.health.pinned_servers import probe_with_heartbeats
from gpus.leasing.contract import Leases
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import slot_name
from gpus.registry import queries
from gpus.registry.index_sync import quarantine_slots
from gpus.registry.quarantine import close_quarantine
from gpus.runners.base import Health
from jobs.models import Attempt
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows

log = structlog.get_logger(__name__)

LIMIT = 200
"""Approximate number of slots probed per run, of responsive and of silent servers each."""
PARALLEL_PROBES = 64
"""More than elsewhere: hundreds of servers may fall silent together, and each probe waits for its
time-out."""
PROBING_SECONDS = 4.0
"""Time for probes per run; the rest waits for the next, so that responsive servers are probed every 10 s."""
UNREACHABLE_AGAIN_SECONDS = 10.0
"""Longest pause between two probes of a silent server. The pause grows from zero (the server may only be
restarting), so that the time-outs of silent servers don't delay the others."""


@dataclass(slots=True)
class _Group:
    """The open quarantine rows (by primary key) of one server and health URL."""

    server: Server
    model: str
    leases: Leases
    rows: dict[int, QuarantinedSlot]

    def suspects(self) -> list[Suspect]:
        return [
            Suspect(
                row.pk,
                row.attempt_id,
                row.boot_id or _boot_when_sent(row, self.server),
                row.since,
                row.until,
                row.follower_attempt_id,
                _was_refused_here(row, self.server) and _is_confirmed_by_one_origin(row, self.server),
            )
            for row in self.rows.values()
        ]


_any_open = statements.AnyRow(lambda: QuarantinedSlot.objects.filter(freed_at=None))


def is_needed(_ports: Ports) -> bool:
    return _any_open()


def sweep(ports: Ports, *, limit: int = LIMIT, at_once: int = PARALLEL_PROBES) -> SweepCount:
    """limit: about how many slots of responsive and of silent servers are probed, each. at_once: probes in
    parallel. looked: open rows. repaired: slots freed.

    Servers that answered the last probe are probed first; silent ones in the remaining time, because each
    costs a timeout.
    """
    now = ports.clock.now()
    answering, silent = _due_servers(now, limit)
    groups, count = _groups(_open_rows([*answering, *silent], now), ports)
    for group in groups:
        count += _free(group, past_run_limit(group.suspects(), now), ports)
    began = ports.clock.monotonic()
    at_once = at_once if ports.parallel_probes > 1 else 1
    for lane in (answering, silent):
        lane_groups = [group for group in groups if group.rows and group.server.pk in lane]
        lane_groups.sort(key=lambda group: lane[group.server.pk])
        for first in range(0, len(lane_groups), at_once):
            if first and ports.clock.monotonic() - began > PROBING_SECONDS:
                break
            count += _ask(lane_groups[first : first + at_once], at_once, ports)
    return count


def _ask(groups: Sequence[_Group], at_once: int, ports: Ports) -> SweepCount:
    now, began = ports.clock.now(), ports.clock.monotonic()
    answers = probe_with_heartbeats(
        ((group.server, group.model) for group in groups),
        leases=ports.leases,
        now=now,
        transport=ports.transport,
        at_once=at_once,
    )
    took = ports.clock.monotonic() - began
    count = SweepCount()
    for group, health in zip(groups, answers, strict=True):
        count += _judge(group, health, now, took, ports)
    return count


_servers = statements.Read(
    lambda: (
        QuarantinedSlot.objects.filter(freed_at=None)
        .order_by()
        .values("server_id", "server__healthy")
        .annotate(
            rows=Count("pk"),
            first=Min("probed_at"),
            probed=Max("probed_at"),
            refused=Max("refused_at"),
            began=Max("since"),
        )
    )
)


def _due_servers(now: datetime, limit: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the servers to probe now, as (responsive, silent): each maps server id to its position in the
    order. The longest unprobed come first; about `limit` slots each."""
    lanes: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for one in _servers():
        if one["server__healthy"] is not False:
            lanes[0].append(one)
        elif _is_silent_due(one, now):
            lanes[1].append(one)
    return _longest_unprobed(lanes[0], limit), _longest_unprobed(lanes[1], limit)


def _longest_unprobed(servers: list[dict[str, Any]], limit: int) -> dict[str, int]:
    servers.sort(key=lambda one: (one["first"] is not None, one["first"] or one["began"], one["server_id"]))
    chosen: dict[str, int] = {}
    rows = 0
    for turn, one in enumerate(servers):
        if rows >= limit:
            break
        rows += one["rows"]
        chosen[one["server_id"]] = turn
    return chosen


def _is_silent_due(one: Mapping[str, Any], now: datetime) -> bool:
    if one["probed"] is None or one["refused"] == one["probed"]:
        return True  # a refused connection costs no time-out, and the server may be starting
    since_asked, trouble = now - one["probed"], now - one["began"]
    return bool(since_asked >= min(timedelta(seconds=UNREACHABLE_AGAIN_SECONDS), trouble / 2))


_outlived = statements.Read(
    lambda: (
        QuarantinedSlot.objects.filter(freed_at=None, until__lte=value(QuarantinedSlot, "until"))
        .order_by("until")
        .values_list("pk", flat=True)[:LIMIT]
    )
)
_sent_by = statements.Read(
    lambda: Attempt.objects.filter(
        id=value(Attempt, "id"), started_at__lte=value(Attempt, "started_at", "seen_at")
    ).values_list("pk")
)


def _open_rows(server_ids: Sequence[str], now: datetime) -> list[QuarantinedSlot]:
    """Return all open rows of these servers, because proofs by count need them all, and the rows whose run
    limit has passed."""
    among = Q(server_id__in=server_ids) | Q(pk__in=_outlived(until=now))
    rows = list(
        QuarantinedSlot.objects.filter(among, freed_at=None)
        .select_related("server__pool")
        .order_by(F("probed_at").asc(nulls_first=True))
    )
    queries.read_placements(row.server for row in rows)
    return rows


def _groups(rows: Sequence[QuarantinedSlot], ports: Ports) -> tuple[list[_Group], SweepCount]:
    """Group the rows by server and health URL, without fleets whose Redis is unavailable.

    Also repeats each quarantine in Redis, which may have lost it.
    """
    groups: dict[tuple[str, str | None], _Group] = {}
    away: dict[str, str] = {}
    for row in rows:
        server, fleet = row.server, row.server.pool.fleet
        if fleet in away:
            continue
        if why := ports.layouts.refusal(fleet):
            away[fleet] = why
            continue
        leases = ports.leases(fleet)
        try:
            suspect = slot_name(server.name, row.slot), row.attempt_id
            if wakes := quarantine_slots(leases, [suspect]):
                ports.send_wakes(wakes)
        except LeasingUnavailable as error:
            away[fleet] = str(error)
            continue
        key = (server.name, health_url(server, row.model))
        groups.setdefault(key, _Group(server, row.model, leases, {})).rows[row.pk] = row
    reachable = [group for group in groups.values() if group.server.pool.fleet not in away]
    notes = tuple(f"{fleet}: {error}" for fleet, error in away.items())
    return reachable, SweepCount(looked=len(rows), notes=notes)


def _was_refused_here(row: QuarantinedSlot, server: Server) -> bool:
    """Return True if the connection refused before was to the current health URL; the model's URL may have
    been wrong for a while."""
    return row.refused_url is not None and row.refused_url == health_url(server, row.model)


def _is_confirmed_by_one_origin(row: QuarantinedSlot, server: Server) -> bool:
    """Return True if a restart of the process at the row's origin ends its run: not if the model was removed
    from the server, or the prefetched attempt ran at another origin."""
    urls = health_urls(server)
    return row.model in urls and (not row.follower_attempt_id or len(set(urls.values())) == 1)


def _boot_when_sent(row: QuarantinedSlot, server: Server) -> str:
    """Return the server's last recorded boot id if the server answered under it after the attempt was sent,
    else an empty string."""
    if not server.boot_id or server.checked_at is None:
        return ""
    return server.boot_id if _sent_by(id=row.attempt_id, seen_at=server.checked_at) else ""


def _judge(group: _Group, health: Health, asked_at: datetime, took: float, ports: Ports) -> SweepCount:
    """Record the probe in the group's rows and free the slots that it proves free. took: seconds."""
    for suspect in group.suspects():
        boot_id = suspect.boot_id or health.boot_id
        row = group.rows[suspect.key]
        row.probed_at, row.boot_id = asked_at, boot_id
        if health.refused:
            row.refused_at, row.refused_url = asked_at, health_url(group.server, row.model)
        found = {
            "probed_at": asked_at,
            "boot_id": boot_id,
            "refused_at": row.refused_at,
            "refused_url": row.refused_url,
        }
        statements.change(QuarantinedSlot, found, pk=suspect.key)
    count = _free(group, proven_by_health(group.suspects(), health, asked_at), ports)
    if group.rows and health.ok and health.jobs is None:
        try:
            count += _free(group, _by_count(group, health, took), ports)
        except LeasingUnavailable as error:
            count += SweepCount(notes=(f"{group.server.name}: {error}",))
    if not is_restart(group.server, health):  # `lock_sync` has to see it, too, and ends the other runs
        record_health(group.server, health, asked_at)
    return count


def _by_count(group: _Group, health: Health, took: float) -> dict[int, str]:
    """Return proofs, by row, from the number of jobs that the server runs; see
    `gpus.health.evidence.proven_by_count`."""
    server = group.server.name
    if len(set(health_urls(group.server).values())) > 1 and health.active_jobs:
        return {}  # with several origins, one origin's count can't be assigned to the server's leases
    held = sum(view.state in ("leased", "adoptable", "settling") for view in group.leases.slots(server))
    quiet = group.leases.last_lease_change_seconds(server) - took
    steady = settings.DISPATCHER.lease_seconds + 5.0
    return proven_by_count(group.suspects(), health, leases=held, quiet_seconds=quiet, steady_seconds=steady)


_other_open_rows = statements.Read(
    lambda: QuarantinedSlot.objects.filter(
        server=value(QuarantinedSlot, "server"), slot=value(QuarantinedSlot, "slot"), freed_at=None
    ).values_list("pk")[:1]
)


def _free(group: _Group, proofs: Mapping[int, str], ports: Ports) -> SweepCount:
    """Close the rows with a proof and free their slots. looked stays 0: the rows are counted already."""

    def free(row: QuarantinedSlot) -> bool:
        slot, proof = slot_name(group.server.name, row.slot), proofs[row.pk]
        if not close_quarantine(row, at=ports.clock.now(), evidence=proof):
            return False
        log.info("slot_proven_free", slot=slot, attempt=row.attempt_id, evidence=proof)
        if not _other_open_rows(server=row.server_id, slot=row.slot):
            ports.send_wakes(group.leases.free_slot(slot))
        return True

    proven = [group.rows.pop(key) for key in proofs]
    count = sweep_rows("quarantine", proven, free)
    return SweepCount(0, count.repaired, count.failed, count.notes)
