"""API views of servers (desired and actual state, telemetry, switching) and of all servers of a machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, cast

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import (
    PARAMETERS,
    NamePages,
    allow_only,
    choice_parameter,
    parameter_problem,
    text_parameter,
    text_schema,
    whole_parameter,
)
from gpus.api import answers, bodies
from gpus.api.base import (
    MACHINE,
    SERVER,
    RegistryView,
    actor,
    call_service,
    is_name,
    problem_of_refusal,
    server_name,
    unknown_server,
)
from gpus.health.pinned_servers import BEAT_SECONDS
from gpus.leasing.readings import GPU_MEASURES, MACHINE_MEASURES
from gpus.leasing.store import TELEMETRY_KEPT
from gpus.leasing.values import Measured, Spread, Summary
from gpus.models import Server
from gpus.protocol import DesiredState
from gpus.registry.controls import change_server, switch_machine, unknown_machine
from gpus.registry.index_sync import LeasesOf, read_paused
from gpus.registry.registry import remove_server
from gpus.registry.upload_url import upload_url
from gpus.reports import Observed, observe
from gpus.runners.registry import takes_uploads

_STATES = [state.value for state in DesiredState]


class Servers(RegistryView):
    needs = {"GET": "gpus.view_server"}

    @described(
        "list_servers",
        "GPU servers by name, with desired and actual state",
        answers={200: answers.ServerPage},
        refusals=(400, 403),
        parameters=(
            OpenApiParameter("pool", text_schema()),
            OpenApiParameter("desired", str, enum=_STATES),
            *PARAMETERS,
        ),
        tag="admin",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("pool", "desired", "cursor", "limit"))
        asked = {
            "pool": text_parameter(request, "pool"),
            "desired": choice_parameter(request, "desired", _STATES),
        }
        rows = Server.objects.select_related("pool").prefetch_related("placements__model")
        rows = rows.filter(**{name: value for name, value in asked.items() if value is not None})
        pages = NamePages()
        page = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response(servers_json(page, self.ports().leases))


class ServerDetail(RegistryView):
    needs = {
        "GET": "gpus.view_server",
        "PATCH": "gpus.change_server",
        "DELETE": "gpus.delete_server",
    }

    @described(
        "get_server",
        "A GPU server",
        answers={200: answers.Server},
        refusals=(403, 404),
        parameters=(SERVER,),
        tag="admin",
    )
    def get(self, request: Request, server: str) -> Response:
        return self._answer(server)

    @described(
        "patch_server",
        "Switch a server on, draining or off; change its slots",
        answers={200: answers.Server},
        refusals=(403, 404),
        body=bodies.ServerChange,
        parameters=(SERVER,),
        tag="admin",
        description="draining: running jobs finish, and no job starts. off: running jobs are stopped within "
        "about a second and requeued at their place; it costs no try.",
    )
    def patch(self, request: Request, server: str) -> Response:
        body = read_body(bodies.ServerChange, request.data)
        ports = self.ports()
        found = call_service(
            lambda: change_server(
                server_name(server),
                by=actor(request),
                leases=ports.leases,
                slots=body.slots,
                desired=DesiredState(body.desired) if body.desired else None,
            )
        )
        if found is None:
            raise unknown_server()
        ports.send_wakes(found.wakes)
        return self._answer(server, live=found.mirrored)

    @described(
        "delete_server",
        "Remove a server; its running jobs finish",
        answers={204: None},
        refusals=(403, 404, 409),
        parameters=(SERVER,),
        tag="admin",
        description="409 while one of its slots is in quarantine: registered again, the server would have "
        "that slot free.",
    )
    def delete(self, request: Request, server: str) -> Response:
        name, by, leases = server_name(server), actor(request), self.ports().leases
        if not call_service(lambda: remove_server(name, by=by, leases=leases), place="path"):
            raise unknown_server()
        return Response(status=204)

    def _answer(self, name: str, *, live: bool = True) -> Response:
        rows = Server.objects.select_related("pool").prefetch_related("placements__model")
        row = rows.filter(name=server_name(name)).first()
        if row is None:
            raise unknown_server()
        (found,) = servers_json([row], self.ports().leases)
        return Response({**found, "live": live and found["live"]})


def servers_json(rows: Sequence[Server], leases: LeasesOf) -> list[answers.Server]:
    """The servers as answers. rows: with pools and placements fetched."""
    seen, paused = observe(rows, leases), read_paused().models
    return [_server(row, seen[row.name], paused) for row in rows]


def _server(row: Server, seen: Observed, paused: Collection[str]) -> answers.Server:
    return {
        "server": row.name,
        "pool": row.pool_id,
        "fleet": row.pool.fleet,
        "slots": row.slots,
        "desired": row.desired,
        "observed": cast("answers.Observed", asdict(seen)),
        "host": row.host,
        "machine": row.machine,
        "healthy": row.healthy,
        "tells_health": row.tells_health,
        "checked_at": row.checked_at,
        "last_error": row.last_error,
        "boot_id": row.boot_id,
        "models": [
            {"model": one.model_id, "endpoint": one.endpoint, "paused": one.model_id in paused}
            for one in sorted(row.placements.all(), key=lambda one: one.model_id)
        ],
        "upload_url": upload_url(row) if _takes_uploads(row) else None,
        "live": seen.state != "unknown",
    }


def _takes_uploads(row: Server) -> bool:
    return any(takes_uploads(one.model.model_type) for one in row.placements.all())


KEPT_SECONDS = round(TELEMETRY_KEPT * BEAT_SECONDS)
DEFAULT_SECONDS = 300
WINDOWS = {"hour": 3600, "day": 86_400}

_GPU = {
    "utilisation_percent": "utilisation",
    "memory_used_mb": "used_mb",
    "memory_total_mb": "total_mb",
    "temperature_celsius": "temperature",
    "power_watts": "power",
    "ecc_errors": "ecc_errors",
}
_MACHINE = ("cpus", "cpu_percent", "ram_used_mb", "ram_total_mb", "models_ram_mb")


class Telemetry(RegistryView):
    needs = {"GET": "gpus.view_server"}

    @described(
        "get_server_telemetry",
        "Recent telemetry of a server's worker",
        answers={200: answers.Telemetry},
        refusals=(400, 403, 404),
        parameters=(
            SERVER,
            OpenApiParameter(
                "seconds",
                {"type": "integer", "minimum": 1, "maximum": KEPT_SECONDS, "default": DEFAULT_SECONDS},
                description="Only readings of the last so many seconds.",
            ),
            OpenApiParameter(
                "window",
                str,
                enum=list(WINDOWS),
                description="In place of `seconds`. hour: its readings. day: summaries of five minutes.",
            ),
        ),
        tag="admin",
        description="The newest first. Redis keeps readings for an hour, about one every five seconds, and "
        "summaries for DISPATCHER_TELEMETRY_HOURS (24). Only pinned servers have telemetry. 503 while Redis "
        "does not answer.",
    )
    def get(self, request: Request, server: str) -> Response:
        allow_only(request, ("seconds", "window"))
        window = choice_parameter(request, "window", WINDOWS)
        if window is not None and "seconds" in request.query_params:
            raise parameter_problem("window", "Give either `window` or `seconds`.")
        seconds = (
            whole_parameter(request, "seconds", most=KEPT_SECONDS, default=DEFAULT_SECONDS)
            if window is None
            else WINDOWS[window]
        )
        row = Server.objects.select_related("pool").filter(name=server_name(server)).first()
        if row is None:
            raise unknown_server()
        leases = self.ports().leases(row.pool.fleet)
        samples = [] if window == "day" else leases.telemetry(row.name, seconds)
        summaries = leases.telemetry_summaries(row.name, seconds) if window == "day" else []
        fields = {"server": row.name, "machine": row.machine, "seconds": seconds}
        return Response(
            {
                **fields,
                "samples": [_sample(one) for one in samples],
                "summaries": [_summary(one) for one in summaries],
            }
        )


def _sample(one: Measured) -> dict[str, Any]:
    """A telemetry reading as an answer; missing values are null."""
    reading, gpu = one.reading, one.reading.get("gpu")
    at = reading.get("at")
    return {
        "age_seconds": round(one.age_seconds, 1),
        "measured_at": None if at is None else datetime.fromtimestamp(at, UTC),
        "warm_models": list(reading.get("warm", ())),
        **{name: reading.get(name) for name in _MACHINE},
        "gpu": None if gpu is None else _gpu(gpu),
        "gpu_error": reading.get("gpu_error", ""),
    }


def _summary(one: Summary) -> dict[str, Any]:
    """A summary as an answer; measures that no reading had are null."""
    shown = {new: old for new, old in _GPU.items() if old in GPU_MEASURES}
    names = shown | {name: name for name in MACHINE_MEASURES}
    spreads = {new: one.measures.get(old) for new, old in names.items()}
    return {
        "age_seconds": round(one.age_seconds, 1),
        "readings": one.readings,
        **{name: None if spread is None else _rounded(spread) for name, spread in spreads.items()},
        "loads": [{"model": model, "times": times} for model, times in one.loads.items()],
    }


def _rounded(spread: Spread) -> dict[str, float]:
    return {name: round(value, 1) for name, value in asdict(spread).items()}


def _gpu(reading: Mapping[str, Any]) -> dict[str, Any]:
    holders = reading.get("processes", {})
    return {
        **{name: reading.get(source) for name, source in _GPU.items()},
        "throttled": list(reading.get("throttled", ())),
        "xids": [{"xid": int(xid), "times": times} for xid, times in reading.get("xids", {}).items()],
        "processes": [{"pid": int(pid), "memory_mb": held} for pid, held in holders.items()],
    }


class MachineDetail(RegistryView):
    needs = {"GET": "gpus.view_server", "PATCH": "gpus.change_server"}

    @described(
        "get_machine",
        "The servers of a machine",
        answers={200: answers.Machine},
        refusals=(403, 404),
        parameters=(MACHINE,),
        tag="admin",
    )
    def get(self, request: Request, machine: str) -> Response:
        return self._answer(_machine_name(machine), changed=())

    @described(
        "patch_machine",
        "Switch all servers of a machine on, draining or off",
        answers={200: answers.Machine},
        refusals=(403, 404),
        body=bodies.MachineChange,
        parameters=(MACHINE,),
        tag="admin",
        description="In one transaction. The states are described at PATCH of a server.",
    )
    def patch(self, request: Request, machine: str) -> Response:
        wanted = DesiredState(read_body(bodies.MachineChange, request.data).desired)
        name, by, ports = _machine_name(machine), actor(request), self.ports()
        done = call_service(lambda: switch_machine(name, wanted, by=by, leases=ports.leases))
        ports.send_wakes(done.wakes)
        return self._answer(name, changed=done.changed, live=done.mirrored)

    def _answer(self, machine: str, *, changed: Collection[str], live: bool = True) -> Response:
        rows = (
            Server.objects.select_related("pool")
            .prefetch_related("placements__model")
            .filter(machine=machine)
        )
        servers = servers_json(list(rows.order_by("name")), self.ports().leases)
        if not servers:
            raise problem_of_refusal(unknown_machine(machine))
        fields: dict[str, Any] = {"machine": machine, "servers": servers, "changed": list(changed)}
        return Response({**fields, "live": live and all(one["live"] for one in servers)})


def _machine_name(text: str) -> str:
    """Check a machine's name in the path. Raises Problem 404."""
    if not is_name(text):
        raise problem_of_refusal(unknown_machine(text[:64]))
    return text
