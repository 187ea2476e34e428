"""Slots whose GPU may still be busy with an attempt that we let go of: asks their servers until one is proven
free.

The row is freed first and Redis told after: a crash in between leaves the slot out of use, which `lock_sync`
repairs; the other way round it could be given away while the row still says no.
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
from gpus.health.evidence import Suspect, answered, counted, outlived
from gpus.health.health import health_url, health_urls, is_restart, record_health
from gpus.health.pinned_servers import ask_all
from gpus.leasing.contract import Leases
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import slot_name
from gpus.registry import queries
from gpus.registry.index_sync import shut_slots
from gpus.registry.quarantine import close_quarantine
from gpus.runners.base import Health
from jobs.models import Attempt
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows

log = structlog.get_logger(__name__)

LIMIT = 200
PARALLEL_PROBES = 64
"""More than elsewhere: hundreds of servers may have fallen silent together, and each takes its time-out."""
PROBING_SECONDS = 4.0
"""Then the rest waits for the next sweep: servers that answer are asked again within 10 s."""
UNREACHABLE_AGAIN_SECONDS = 10.0
"""A server that does not answer is asked less and less often: the others' slots should not wait for its
time-out. At first it is asked at every sweep: it may just have been restarting."""


@dataclass(slots=True)
class _Group:
    """The open rows behind one health URL, with what is known of each."""

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


_any_open = statements.Read(
    lambda: QuarantinedSlot.objects.filter(freed_at=None).order_by().values_list("pk", flat=True)[:1]
)


def is_needed(_ports: Ports) -> bool:
    return bool(_any_open())


def sweep(ports: Ports) -> SweepCount:
    """repaired: slots freed. Servers that answered last time are asked first, silent ones as long as there is
    time: each of these takes a time-out."""
    now = ports.clock.now()
    answering, silent = _due_servers(now)
    groups, count = _groups(_open_rows([*answering, *silent], now), ports)
    for group in groups:
        count += _free(group, outlived(group.suspects(), now), ports)
    began = ports.clock.monotonic()
    at_once = PARALLEL_PROBES if ports.parallel_probes > 1 else 1
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
    answers = ask_all(
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


def _due_servers(now: datetime) -> tuple[dict[str, int], dict[str, int]]:
    """Servers to be asked now, by id, with their turn: those that answered last, and those that did not. The
    longest not asked go first; of each kind about `LIMIT` slots."""
    lanes: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for one in _servers():
        if one["server__healthy"] is not False:
            lanes[0].append(one)
        elif _is_silent_due(one, now):
            lanes[1].append(one)
    return _first_rows(lanes[0]), _first_rows(lanes[1])


def _first_rows(servers: list[dict[str, Any]]) -> dict[str, int]:
    servers.sort(key=lambda one: (one["first"] is not None, one["first"] or one["began"], one["server_id"]))
    chosen: dict[str, int] = {}
    rows = 0
    for turn, one in enumerate(servers):
        if rows >= LIMIT:
            break
        rows += one["rows"]
        chosen[one["server_id"]] = turn
    return chosen


def _is_silent_due(one: Mapping[str, Any], now: datetime) -> bool:
    if one["probed"] is None or one["refused"] == one["probed"]:
        return True  # a refusal costs no time-out, and it may be back any moment
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
    """All of these servers, because some proofs count them; and those whose run limit has passed."""
    among = Q(server_id__in=server_ids) | Q(pk__in=_outlived(until=now))
    rows = list(
        QuarantinedSlot.objects.filter(among, freed_at=None)
        .select_related("server__pool")
        .order_by(F("probed_at").asc(nulls_first=True))
    )
    queries.read_placements(row.server for row in rows)
    return rows


def _groups(rows: Sequence[QuarantinedSlot], ports: Ports) -> tuple[list[_Group], SweepCount]:
    """Also tells the lease layer of every row, in case it forgot. Where Redis is away, nothing is freed."""
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
            if wakes := shut_slots(leases, [suspect]):
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
    """Whether nothing listened where it is asked now: its model's URL may have been wrong for a while."""
    return row.refused_url is not None and row.refused_url == health_url(server, row.model)


def _is_confirmed_by_one_origin(row: QuarantinedSlot, server: Server) -> bool:
    """Whether what restarts at the row's origin is what may still run there; not if its model is gone from
    the server, or what followed it ran at another origin."""
    urls = health_urls(server)
    return row.model in urls and (not row.follower_attempt_id or len(set(urls.values())) == 1)


def _boot_when_sent(row: QuarantinedSlot, server: Server) -> str:
    """The server's last recorded boot, if it still answered under it after the attempt was sent."""
    if not server.boot_id or server.checked_at is None:
        return ""
    return server.boot_id if _sent_by(id=row.attempt_id, seen_at=server.checked_at) else ""


def _judge(group: _Group, health: Health, asked_at: datetime, took: float, ports: Ports) -> SweepCount:
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
    count = _free(group, answered(group.suspects(), health, asked_at), ports)
    if group.rows and health.ok and health.jobs is None:
        try:
            count += _free(group, _by_count(group, health, took), ports)
        except LeasingUnavailable as error:
            count += SweepCount(notes=(f"{group.server.name}: {error}",))
    if not is_restart(group.server, health):  # what a restart means for its other runs is `lock_sync`'s
        record_health(group.server, health, asked_at)
    return count


def _by_count(group: _Group, health: Health, took: float) -> dict[int, str]:
    server = group.server.name
    if len(set(health_urls(group.server).values())) > 1 and health.active_jobs:
        return {}  # this origin's count says nothing about which of the server's leases it runs
    held = sum(view.state in ("leased", "adoptable", "settling") for view in group.leases.slots(server))
    quiet = group.leases.last_lease_change_seconds(server) - took
    steady = settings.DISPATCHER.lease_seconds + 5.0
    return counted(group.suspects(), health, leases=held, quiet_seconds=quiet, steady_seconds=steady)


_others = statements.Read(
    lambda: QuarantinedSlot.objects.filter(
        server=value(QuarantinedSlot, "server"), slot=value(QuarantinedSlot, "slot"), freed_at=None
    ).values_list("pk")[:1]
)


def _free(group: _Group, proofs: Mapping[int, str], ports: Ports) -> SweepCount:
    """looked stays 0: the rows are counted already."""

    def free(row: QuarantinedSlot) -> bool:
        slot, proof = slot_name(group.server.name, row.slot), proofs[row.pk]
        if not close_quarantine(row, at=ports.clock.now(), evidence=proof):
            return False
        log.info("slot_proven_free", slot=slot, attempt=row.attempt_id, evidence=proof)
        if not _others(server=row.server_id, slot=row.slot):
            ports.send_wakes(group.leases.free_slot(slot))
        return True

    proven = [group.rows.pop(key) for key in proofs]
    count = sweep_rows("quarantine", proven, free)
    return SweepCount(0, count.repaired, count.failed, count.notes)
