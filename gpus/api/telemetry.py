"""What a server's worker measured lately, over HTTP: Redis keeps an hour of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import allow_only, whole_parameter
from gpus.api.base import SERVER, RegistryView, server_name, unknown_server
from gpus.health.pinned_servers import BEAT_SECONDS
from gpus.leasing.store import TELEMETRY_KEPT
from gpus.leasing.values import Measured
from gpus.models import Server

KEPT_SECONDS = round(TELEMETRY_KEPT * BEAT_SECONDS)
DEFAULT_SECONDS = 300

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
        "What the worker of a server measured lately",
        answers={200: "Telemetry"},
        refusals=(400, 403, 404),
        parameters=(
            SERVER,
            OpenApiParameter(
                "seconds",
                {"type": "integer", "minimum": 1, "maximum": KEPT_SECONDS, "default": DEFAULT_SECONDS},
                description="Only what it told in the last so many seconds.",
            ),
        ),
        tag="admin",
        description="The newest first, one about every five seconds; an hour of them is kept, in Redis. "
        "Servers whose worker is not on their machine have none. 503 while Redis is away.",
    )
    def get(self, request: Request, server: str) -> Response:
        allow_only(request, ("seconds",))
        seconds = whole_parameter(request, "seconds", most=KEPT_SECONDS, default=DEFAULT_SECONDS)
        row = Server.objects.select_related("pool").filter(name=server_name(server)).first()
        if row is None:
            raise unknown_server()
        found = self.ports().leases(row.pool.fleet).telemetry(row.name, seconds)
        told = {"server": row.name, "machine": row.machine, "seconds": seconds}
        return Response({**told, "samples": [_sample(one) for one in found]})


def _sample(one: Measured) -> dict[str, Any]:
    """What was not measured is null."""
    said, gpu = one.reading, one.reading.get("gpu")
    at = said.get("at")
    return {
        "age_seconds": round(one.age_seconds, 1),
        "measured_at": None if at is None else datetime.fromtimestamp(at, UTC),
        "warm_models": list(said.get("warm", ())),
        **{name: said.get(name) for name in _MACHINE},
        "gpu": None if gpu is None else _gpu(gpu),
        "gpu_error": said.get("gpu_error", ""),
    }


def _gpu(said: Mapping[str, Any]) -> dict[str, Any]:
    holders = said.get("processes", {})
    return {
        **{name: said.get(source) for name, source in _GPU.items()},
        "throttled": list(said.get("throttled", ())),
        "xids": [{"xid": int(xid), "times": times} for xid, times in said.get("xids", {}).items()],
        "processes": [{"pid": int(pid), "memory_mb": held} for pid, held in holders.items()],
    }
