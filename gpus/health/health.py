"""What a GPU server says of itself, and a sender's question about its own attempt.

The runner of its protocol asks (`gpus.runners`), and reads the answer with distrust: whatever does not have
the expected shape is as if unsaid. A server without a health endpoint is well, and proves nothing of its
runs.
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
from foundation.secrets import SecretUnreadable, decrypt
from gpus.errors import ConnectRefused, ConnectTimedOut, GpuError, LeasingUnavailable, RunTimedOut
from gpus.health.evidence import absence, spare_by_count
from gpus.leasing.contract import Leases
from gpus.models import Placement, Server
from gpus.protocol import Clock, Endpoint
from gpus.registry.registry import Registered
from gpus.runners.base import Health, Response, Transport
from gpus.runners.registry import find_runner, missing_runner_message
from gpus.runners.transport import HttpTransport

log = structlog.get_logger(__name__)

MAX_BYTES = 1_000_000
RECORD_SECONDS = 30.0
"""How often an unchanged state is written to the server's row."""
PARALLEL_PROBES = 8
REFUSED_SECONDS = 1.0
"""A refusal comes at once; a server that stays silent is not waited for."""
_REFUSED_TRIES, _AGAIN_SECONDS = 5, 0.05


def probe(
    server: Server,
    *,
    model: str = "",
    transport: Transport | None = None,
    timeout_seconds: float | None = None,
) -> Health:
    """Asks once, within `health_timeout_seconds` or the time given; never raises, whatever the server says.
    model: beside whose endpoint to ask; the first one by name if there is none of that name.

    Reads the placements and their models: prefetch ``placements__model``, and it needs no database (so that
    threads may call it).
    """
    placement = _asked_beside(server, model)
    if placement is None:
        return Health(False, error="no HTTP endpoint to ask")
    runner = find_runner(placement.model.model_type)
    if runner is None:
        return Health(False, error=missing_runner_message(placement.model.model_type)[:500])
    try:
        stored = server.headers_encrypted
        headers: Mapping[str, str] = json.loads(decrypt(stored)) if stored else {}
    except SecretUnreadable as error:
        return Health(False, error=str(error))
    timeout = settings.DISPATCHER.health_timeout_seconds if timeout_seconds is None else timeout_seconds

    def get(url: str) -> Response:
        return (transport or HttpTransport()).request(
            "GET",
            url,
            headers={"Accept": "application/json", "X-Source": "dispatcher", **headers},
            body=None,
            connect_timeout_seconds=min(timeout, settings.DISPATCHER.connect_timeout_seconds),
            deadline_seconds=timeout,
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
        log.exception("health_probe_broke", server=server.name, model_type=placement.model.model_type)
        return Health(False, error=f"its health probe broke: {type(error).__name__}: {error}"[:500])


def probe_all(
    asked: Iterable[tuple[Server, str]],
    *,
    transport: Transport | None = None,
    at_once: int = PARALLEL_PROBES,
) -> list[Health]:
    """Probes (server, model) pairs in parallel, answers in order."""
    pairs = list(asked)
    if len(pairs) < 2 or at_once < 2:
        return [probe(server, model=model, transport=transport) for server, model in pairs]
    with ThreadPoolExecutor(min(at_once, len(pairs)), thread_name_prefix="probe") as threads:
        return list(threads.map(lambda pair: probe(pair[0], model=pair[1], transport=transport), pairs))


def health_url(server: Server, model: str = "") -> str | None:
    """Where the server is asked beside the model's endpoint: ``/health`` at its origin, or what its protocol
    has; None without an HTTP endpoint."""
    placement = _asked_beside(server, model)
    return None if placement is None else url_of(placement)


def health_urls(server: Server) -> dict[str, str]:
    """By model, in the order of their names: a server's models may live at several origins."""
    return {
        placement.model_id: url_of(placement)
        for placement in _over_http(server)
        if find_runner(placement.model.model_type) is not None
    }


def _over_http(server: Server) -> list[Placement]:
    there = sorted(server.placements.all(), key=lambda placement: placement.model_id)
    parts = ((placement, urlsplit(placement.endpoint)) for placement in there)
    return [one for one, url in parts if url.scheme in ("http", "https") and url.netloc]


def _asked_beside(server: Server, model: str) -> Placement | None:
    """A model whose runner is not installed is asked beside only where there is no other one."""
    there = _over_http(server)
    can_ask = [one for one in there if find_runner(one.model.model_type) is not None] or there
    return next((one for one in can_ask if one.model_id == model), can_ask[0] if can_ask else None)


def url_of(placement: Placement) -> str:
    """Where the placement's server is asked for its health; its endpoint, if nobody can ask there."""
    model = placement.model
    runner = find_runner(model.model_type)
    if runner is None:
        return placement.endpoint
    return runner.health_url(model.spec, Endpoint(placement.server_id, placement.endpoint))


def is_restart(server: Server, health: Health) -> bool:
    """Whether it answers under another boot than the one on its row."""
    return bool(health.boot_id and server.boot_id and health.boot_id != server.boot_id)


def record_health(server: Server, health: Health, at: datetime) -> bool:
    """Writes what was found to the server's row if it is news, or its last answer is 30 s old. True: written.

    `checked_at` is when the server last *answered*: that boot_id was running then, which is what a later one
    is compared with. `updated_at` stays: the registry did not change.
    """
    found: dict[str, Any] = {"healthy": health.ok, "last_error": health.error[:500]}
    if health.ok:
        found |= {"boot_id": health.boot_id, "tells_health": health.has_endpoint}
    is_news = any(getattr(server, field) != value for field, value in found.items())
    is_old = server.checked_at is None or at - server.checked_at >= timedelta(seconds=RECORD_SECONDS)
    if not is_news and not (health.ok and is_old):
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
    """Asks the server whether an attempt, whose sender has let go of it, still runs: the proof that it does
    not, or None. Whether that was long enough ago (`evidence.is_settled`) only the sender knows.

    leases: of the server's fleet.
    """
    machine = Server.objects.prefetch_related("placements__model").filter(name=server).first()
    if machine is None:
        return None
    proofs = []
    for model in {url: model for model, url in health_urls(machine).items()}.values():
        asked_at = clock.monotonic()
        health = probe(machine, model=model, transport=transport)
        took = clock.monotonic() - asked_at
        proofs.append(absence(health, attempt_id) or _none_by_count(machine, health, leases, took))
    return proofs[0] if proofs and all(proofs) else None


def refused_url(server: str, model: str, *, transport: Transport) -> str:
    """Where nothing listens of the server that runs the model; else empty. A process that was killed just now
    may take one more connection and break it: it is asked again, a few times."""
    machine = Server.objects.prefetch_related("placements__model").filter(name=server, host=None).first()
    url = health_urls(machine).get(model) if machine is not None else None
    if machine is None or url is None:
        return ""
    for _ in range(_REFUSED_TRIES):
        health = probe(machine, model=model, transport=transport, timeout_seconds=REFUSED_SECONDS)
        if health.refused:
            return url
        if health.reached or health.timed_out:
            break
        time.sleep(_AGAIN_SECONDS)
    return ""


def _none_by_count(server: Server, health: Health, leases: Leases, took: float) -> str | None:
    """Only a zero: what the server's other leases run may have ended before their workers know."""
    if health.jobs is not None or health.active_jobs != 0:
        return None
    try:
        quiet = leases.last_lease_change_seconds(server.name) - took
    except LeasingUnavailable:
        return None
    spare = spare_by_count(health, suspects=1, leases=0, quiet_seconds=quiet)
    return "the server runs nothing" if spare else None


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
    return () if health.has_endpoint else (Warning(NO_HEALTH, _what_is_lost(placement)),)


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
    return (
        f"{lost} Name a health_path if it has another one; "
        "docs/reference/gpu_protocol.md says what it may answer."
    )
