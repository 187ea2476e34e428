"""Liveness (/livez) and readiness (/readyz) probes, without a key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse

import jobs.ports
from gpus.errors import REDIS_AWAY, LayoutNotInUse, LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.registry import queries
from jobs.ports import Ports, Readiness
from jobs.sweeps.base import TICK, sweep_ages


def livez(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "alive"})


def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 503 until the database answers and its migrations are applied: a web process needs no more.

    The status is `degraded` if a fleet's Redis is unavailable or its index is being rebuilt: jobs are
    accepted, but jobs of that fleet don't start; with ``?strict=1`` that is a 503, too. The age of beat's
    last tick and wrong clocks are information only and don't affect the status.
    """
    ports = jobs.ports.production_ports()
    checks = {"database": _database()}
    if checks["database"]["ok"]:
        checks["migrations"] = _migrations(ports.readiness)
    ready = all(check["ok"] for check in checks.values())
    checks["redis"] = _redis(ports, read_fleets=ready)
    tick = sweep_ages(ports.clock.now()).get(TICK) if ready else None
    whole = ready and checks["redis"]["ok"]
    body = {
        "status": "ready" if whole else "degraded" if ready else "not ready",
        "checks": checks,
        "last_sweep_seconds": None if tick is None else round(tick, 3),
        "clocks_off": {name: round(seconds, 1) for name, seconds in ports.clock_watch.report().off.items()},
    }
    strict = request.GET.get("strict", "") not in ("", "0")
    return JsonResponse(body, status=200 if whole or (ready and not strict) else 503)


def _database() -> dict[str, Any]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return {"ok": True}
    except (DatabaseError, InterfaceError) as error:
        return {"ok": False, "error": type(error).__name__}


def _redis(ports: Ports, *, read_fleets: bool) -> dict[str, Any]:
    """Probe all fleets in parallel, so that many hung ones take no longer than one."""
    known = ports.readiness
    if read_fleets:
        known.fleets = tuple(queries.fleets())
    answers = known.probes.run({fleet: partial(_generation, ports.leases, fleet) for fleet in known.fleets})
    fleets = {fleet: _fleet(answer) for fleet, answer in answers.items()}
    return {"ok": all(fleet["ok"] for fleet in fleets.values()), "fleets": fleets}


def _generation(leases: Callable[[str], Leases], fleet: str) -> str | None:
    return leases(fleet).generation()


def _fleet(answer: Any) -> dict[str, Any]:
    if isinstance(answer, LayoutNotInUse):
        # ready all the same: processes of the layout in use push the tickets
        return {"ok": True, "generation": None, "note": str(answer)}
    if isinstance(answer, (LeasingUnavailable, TimeoutError)):
        return {"ok": False, "generation": None, "error": REDIS_AWAY}
    if isinstance(answer, Exception):
        return {"ok": False, "generation": None, "error": type(answer).__name__}
    if answer is None:
        return {"ok": False, "generation": None, "error": "the index is being rebuilt"}
    return {"ok": True, "generation": answer}


def _migrations(known: Readiness) -> dict[str, Any]:
    if not known.migrated:
        try:
            executor = MigrationExecutor(connection)
            missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        except (DatabaseError, InterfaceError) as error:
            return {"ok": False, "error": type(error).__name__}
        if missing:
            return {"ok": False, "error": f"{len(missing)} migrations to apply"}
        known.migrated = True
    return {"ok": True}
