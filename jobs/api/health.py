"""/livez: the process answers. /readyz: it can do its work. For load balancers; no key needed."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse

from gpus.errors import LayoutNotInUse, LeasingUnavailable
from jobs.services import ports as wiring
from jobs.sweeps import TICK, sweep_ages

_migrated = False
"""Once all migrations are applied they stay so for this process' code."""


def livez(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "alive"})


def readyz(request: HttpRequest) -> HttpResponse:
    """503 until database, migrations and Redis (with a whole index) are there. How long ago beat's last tick
    was done, and which clock is off, is only told: a web process is no less ready when beat is silent."""
    checks = {"database": _database(), "redis": _redis()}
    if checks["database"]["ok"]:
        checks["migrations"] = _migrations()
    ready = all(check["ok"] for check in checks.values())
    tick = sweep_ages().get(TICK) if checks.get("migrations", {}).get("ok") else None
    body = {
        "status": "ready" if ready else "not ready",
        "checks": checks,
        "last_sweep_seconds": None if tick is None else round(tick, 3),
        "clocks_off": {name: round(seconds, 1) for name, seconds in wiring.clock_report().off.items()},
    }
    return JsonResponse(body, status=200 if ready else 503)


def _database() -> dict[str, Any]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return {"ok": True}
    except (DatabaseError, InterfaceError) as error:
        return {"ok": False, "error": type(error).__name__}


def _redis() -> dict[str, Any]:
    try:
        generation = wiring.production_ports().leases("main").generation()
    except LayoutNotInUse as error:
        # it serves all the same: tickets are pushed by processes of the layout that is in use
        return {"ok": True, "generation": None, "note": str(error)}
    except LeasingUnavailable:
        return {"ok": False, "generation": None, "error": "does not answer"}
    if generation is None:
        return {"ok": False, "generation": None, "error": "the index is being rebuilt"}
    return {"ok": True, "generation": generation}


def _migrations() -> dict[str, Any]:
    global _migrated
    if not _migrated:
        try:
            executor = MigrationExecutor(connection)
            missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        except (DatabaseError, InterfaceError) as error:
            return {"ok": False, "error": type(error).__name__}
        if missing:
            return {"ok": False, "error": f"{len(missing)} to apply"}
        _migrated = True
    return {"ok": True}
