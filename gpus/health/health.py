"""Probes the health of GPU servers, and checks whether an abandoned attempt still runs there.

The runner of the server's protocol (`gpus.runners`) sends the probe and parses the answer; fields of an
unexpected shape are ignored. A server without a health endpoint counts as healthy, and gives no proof about
its runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import structlog
from django.conf import settings

from foundation.database import statements
from foundation.program import page
from foundation.secrets import SecretUnreadable, decrypt
from gpus.errors import ConnectRefused, ConnectTimedOut, GpuError, LeasingUnavailable, RunTimedOut
from gpus.health.evidence import absence_proof, spare_by_count
from gpus.leasing.contract import Leases
from gpus.models import Placement, Server
from gpus.protocol import Clock, Endpoint
from gpus.registry.registry import Registered
from gpus.runners.base import Health, Transport, getter
from gpus.runners.registry import find_runner, missing_runner_message
from gpus.runners.transport import HttpTransport

log = structlog.get_logger(__name__)

MAX_BYTES = 1_000_000
RECORD_SECONDS = 30.0
"""How often an unchanged state is written to the server's row."""
PARALLEL_PROBES = 8
REFUSED_SECONDS = 1.0
"""Timeout of the check for a refused connection; a refusal arrives at once."""
_REFUSED_TRIES, _AGAIN_SECONDS = 5, 0.05


def probe(
    server: Server,
    *,
    model: str = "",
    transport: Transport | None = None,
    timeout_seconds: float | None = None,
) -> Health:
    """Probe a server once. Never raises.

    model: whose endpoint's origin is probed; the first one by name if the server lacks it. timeout_seconds:
    None: `health_timeout_seconds`. With prefetched ``placements__model`` it does not use the database, so
    threads may call it.
    """
    placement = _probed_placement(server, model)
    if placement is None:
        return Health(False, error="the server has no HTTP endpoint to probe")
    runner = find_runner(placement.model.model_type)
    if runner is None:
        return Health(False, error=missing_runner_message(placement.model.model_type)[:500])
    try:
        stored = server.headers_encrypted
        headers: Mapping[str, str] = json.loads(decrypt(stored)) if stored else {}
    except SecretUnreadable as error:
        return Health(False, error=str(error))
    timeout = settings.DISPATCHER.health_timeout_seconds if timeout_seconds is None else timeout_seconds

    get = getter(
        transport or HttpTransport(),
        headers=headers,
        timeout_seconds=timeout,
        connect_timeout_seconds=settings.DISPATCHER.connect_timeout_seconds,
        max_bytes=MAX_BYTES,
        ca_pem=server.ca_pem or None,
    )
    endpoint = Endpoint(server.name, placement.endpoint, max_slots=server.slots)
    try:
        return runner.health(placement.model.spec, endpoint, get)
    except GpuError as error:
        return Health(
            False,
            error=f"{error.code}: {error.message}"[:500],
            reached=False,
            refused=isinstance(error, ConnectRefused),
            timed_out=isinstance(error, (RunTimedOut, ConnectTimedOut)),
        )
    except Exception as error:  # a runner of another package may raise anything
        log.exception("health_probe_crashed", server=server.name, model_type=placement.model.model_type)
        return Health(False, error=f"the health probe failed: {type(error).__name__}: {error}"[:500])


def probe_all(
    asked: Iterable[tuple[Server, str]],
    *,
    transport: Transport | None = None,
    at_once: int = PARALLEL_PROBES,
) -> list[Health]:
    """Probe (server, model) pairs in parallel. Returns the results in order. at_once: number of threads."""
    pairs = list(asked)
    if len(pairs) < 2 or at_once < 2:
        return [probe(server, model=model, transport=transport) for server, model in pairs]
    with ThreadPoolExecutor(min(at_once, len(pairs)), thread_name_prefix="probe") as threads:
        return list(threads.map(lambda pair: probe(pair[0], model=pair[1], transport=transport), pairs))


def health_url(server: Server, model: str = "") -> str | None:
    """The URL of the server's health probe for a model, or None without an HTTP endpoint."""
    placement = _probed_placement(server, model)
    return None if placement is None else url_of(placement)


def health_urls(server: Server) -> dict[str, str]:
    """The URLs of the server's health probes by model, ordered by name; a server may have several origins."""
    return {
        placement.model_id: url_of(placement)
        for placement in _over_http(server)
        if find_runner(placement.model.model_type) is not None
    }


def _over_http(server: Server) -> list[Placement]:
    there = sorted(server.placements.all(), key=lambda placement: placement.model_id)
    parts = ((placement, urlsplit(placement.endpoint)) for placement in there)
    return [one for one, url in parts if url.scheme in ("http", "https") and url.netloc]


def _probed_placement(server: Server, model: str) -> Placement | None:
    """The placement to probe; one whose runner is not installed only if there is no other."""
    there = _over_http(server)
    can_ask = [one for one in there if find_runner(one.model.model_type) is not None] or there
    return next((one for one in can_ask if one.model_id == model), can_ask[0] if can_ask else None)


def url_of(placement: Placement) -> str:
    """The URL of the placement's health probe; its endpoint if the runner is not installed."""
    model = placement.model
    runner = find_runner(model.model_type)
    if runner is None:
        return placement.endpoint
    return runner.health_url(model.spec, Endpoint(placement.server_id, placement.endpoint))


def is_restart(server: Server, health: Health) -> bool:
    """Whether the server's boot id differs from the one on its row."""
    return bool(health.boot_id and server.boot_id and health.boot_id != server.boot_id)


def record_health(server: Server, health: Health, at: datetime) -> bool:
    """Write a probe's result to the server's row if it changed, or the last answer is 30 s old. Returns
    whether.

    `checked_at` is the time of the last *answer*, at which the stored boot_id was running. `updated_at`
    stays, because the registry did not change.
    """
    found: dict[str, Any] = {"healthy": health.ok, "last_error": health.error[:500]}
    if health.ok:
        found |= {"boot_id": health.boot_id, "tells_health": health.has_endpoint}
    is_changed = any(getattr(server, field) != value for field, value in found.items())
    is_old = server.checked_at is None or at - server.checked_at >= timedelta(seconds=RECORD_SECONDS)
    if not is_changed and not (health.ok and is_old):
        return False
    if health.ok:
        found["checked_at"] = at
    statements.change(Server, found, pk=server.pk)
    for field, value in found.items():
        setattr(server, field, value)
    return True


def evidence_for(
    server: str, attempt_id: str, *, transport: Transport, leases: Leases, clock: Clock
) -> str | None:
    """Probe the server for a proof that an abandoned attempt no longer runs; None without a proof.

    The caller checks that the attempt was abandoned long enough before (`evidence.is_settled`). leases: of
    the server's fleet.
    """
    row = Server.objects.prefetch_related("placements__model").filter(name=server).first()
    if row is None:
        return None
    proofs = []
    for model in {url: model for model, url in health_urls(row).items()}.values():
        asked_at = clock.monotonic()
        health = probe(row, model=model, transport=transport)
        took = clock.monotonic() - asked_at
        proofs.append(absence_proof(health, attempt_id) or _none_by_count(row, health, leases, took))
    return proofs[0] if proofs and all(proofs) else None


def refused_url(server: str, model: str, *, transport: Transport) -> str:
    """The health URL if the server of the model refuses connections, else "".

    Retried a few times, because a process that was just killed may accept one more connection and break it.
    """
    row = Server.objects.prefetch_related("placements__model").filter(name=server, host=None).first()
    url = health_urls(row).get(model) if row is not None else None
    if row is None or url is None:
        return ""
    for _ in range(_REFUSED_TRIES):
        health = probe(row, model=model, transport=transport, timeout_seconds=REFUSED_SECONDS)
        if health.refused:
            return url
        if health.reached or health.timed_out:
            break
        time.sleep(_AGAIN_SECONDS)
    return ""


def _none_by_count(server: Server, health: Health, leases: Leases, took: float) -> str | None:
    """A proof if the server counts zero jobs; other counts are no proof, as other runs may have just
    ended."""
    if health.jobs is not None or health.active_jobs != 0:
        return None
    try:
        quiet = leases.last_lease_change_seconds(server.name) - took
    except LeasingUnavailable:
        return None
    spare = spare_by_count(health, suspects=1, leases=0, quiet_seconds=quiet)
    return "the server runs nothing" if spare else None


NO_HEALTH, UNREACHABLE, UNHEALTHY = "no_health_endpoint", "server_unreachable", "server_unhealthy"
ELSEWHERE = "other_address"


@dataclass(frozen=True, slots=True)
class Warning:
    """A warning for the operator who registers a server. code: stable. detail: the effect, and a remedy."""

    code: str
    detail: str


def check_registered_server(
    found: Registered, *, transport: Transport, now: Callable[[], datetime]
) -> tuple[Warning, ...]:
    """Probe a newly registered server once, within `register_probe_seconds`. Returns warnings.

    A good answer is written to its row. A pinned server is not probed, because its worker sends heartbeats.
    """
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
    # a server may be registered before it is up; a restart is left to the sweep `lock_sync`
    if health.ok and not is_restart(server, health):
        record_health(server, health, now())
    if not health.ok:
        code = UNHEALTHY if health.reached else UNREACHABLE
        detail = f"{health.error}. Jobs that are sent there fail or wait until this is fixed."
        return (Warning(code, detail),)
    return () if health.has_endpoint else (Warning(NO_HEALTH, _what_is_lost(placement)),)


def _what_is_lost(placement: Placement) -> str:
    model = placement.model
    limit = f"{model.spec.run_limit_seconds:.0f} s (the model's run limit)"
    lost = (
        f"{url_of(placement)} does not report running jobs. After a lost connection or worker a slot is "
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
    return f"{lost} Set health_path if the server has another one ({page('docs/reference/gpu_protocol.md')})."
