"""A look at a server that was registered just now: what its operator should know before the first job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from gpus.health.health import is_restart, probe, record_health, url_of
from gpus.models import Placement, Server
from gpus.registry.registry import Registered
from gpus.runners.base import Transport
from gpus.runners.registry import find_runner

NO_HEALTH, UNREACHABLE, UNHEALTHY = "no_health_endpoint", "server_unreachable", "server_unhealthy"


@dataclass(frozen=True, slots=True)
class Warning:
    """code: stable. detail: what is lost, and what would change it."""

    code: str
    detail: str


def look_at_registered(
    found: Registered, *, transport: Transport, now: Callable[[], datetime]
) -> tuple[Warning, ...]:
    """Ask the server once for its health beside the registered model, within `register_probe_seconds`, and
    write a good answer to its row. A pinned server is not asked: its worker tells."""
    server = Server.objects.prefetch_related("placements__model").filter(name=found.server.name).first()
    if server is None or server.host is not None:
        return ()
    placement = next((one for one in server.placements.all() if one.model_id == found.config.name), None)
    if placement is None:
        return ()
    health = probe(
        server,
        model=placement.model_id,
        transport=transport,
        timeout_seconds=settings.DISPATCHER.register_probe_seconds,
    )
    # one that is registered before it is up is not sick; what a restart means for its runs is `lock_sync`'s
    if health.ok and not is_restart(server, health):
        record_health(server, health, now())
    if not health.ok:
        code = UNHEALTHY if health.reached else UNREACHABLE
        detail = f"{health.error}. Jobs that are sent there fail or wait until it is mended."
        return (Warning(code, detail),)
    return () if health.tells else (Warning(NO_HEALTH, _what_is_lost(placement)),)


def _what_is_lost(placement: Placement) -> str:
    model = placement.model
    limit = f"{model.spec.run_limit_seconds:.0f} s (the model's run limit)"
    lost = (
        f"{url_of(placement)} tells nothing of what runs. After a lost connection or a lost worker a slot is "
        f"held for up to {limit}, unless the server restarts or an operator frees it."
    )
    runner = find_runner(model.model_type)
    if runner is None or "health_path" not in runner.options:
        return lost
    if "cancel_endpoint_template" in runner.options and not model.cancel_endpoint_template:
        lost += (
            " A cancelled run keeps its slot until its request is answered, unless the model has a "
            "cancel_endpoint_template."
        )
    return f"{lost} Name a health_path if it has another one; docs/gpu_protocol.md says what it may answer."
