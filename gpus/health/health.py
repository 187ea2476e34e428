"""What a GPU server says of itself (`GET /health`), and a sender's question about its own attempt.

The server's answer is read with distrust: whatever does not have the expected shape is as if unsaid. A server
that answers without a health endpoint is well, and proves nothing of its runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from foundation.database import statements
from foundation.secrets import SecretUnreadable, decrypt
from gpus.errors import ConnectRefused, ConnectTimedOut, GpuError, LeasingUnavailable, RunTimedOut
from gpus.health.evidence import Health, absence, spare_by_count
from gpus.health.foreign_health import NO_SUCH_PAGE, OTHERS, first_url
from gpus.leasing.contract import Leases
from gpus.models import Placement, Server
from gpus.protocol import Clock, ModelType
from gpus.runners.base import Response, Transport
from gpus.runners.json_body import Unreadable, read_json
from gpus.runners.refusals import refusal
from gpus.runners.transport import HttpTransport

MAX_BYTES = 1_000_000
RECORD_SECONDS = 30.0
"""How often an unchanged state is written to the server's row."""
PARALLEL_PROBES = 8
REFUSED_SECONDS = 1.0
"""A refusal comes at once; a server that stays silent is not waited for."""
_REFUSED_TRIES, _AGAIN_SECONDS = 5, 0.05
_FIELDS = frozenset({"boot_id", "active_jobs", "max_concurrent", "direct_queue", "jobs"})
"""Without one of these an answer says nothing of the server's runs."""


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

    config, url = placement.model, url_of(placement)
    ask = OTHERS.get(ModelType(config.model_type))
    try:
        if ask is not None:
            return ask(placement.endpoint, config.remote_model or config.name, server.slots, get)
        answer = get(url)
    except GpuError as error:
        return Health(
            False,
            error=f"{error.code}: {error.message}"[:500],
            reached=False,
            refused=isinstance(error, ConnectRefused),
            timed_out=isinstance(error, (RunTimedOut, ConnectTimedOut)),
        )
    if answer.status in NO_SUCH_PAGE and not config.health_path:
        return Health(True, tells=False)
    if answer.status != 200:
        return Health(False, error=f"GET {url} answered {refusal(answer.status)}")
    return read_health(answer.body)


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
    return {placement.model_id: url_of(placement) for placement in _over_http(server)}


def _over_http(server: Server) -> list[Placement]:
    there = sorted(server.placements.all(), key=lambda placement: placement.model_id)
    parts = ((placement, urlsplit(placement.endpoint)) for placement in there)
    return [one for one, url in parts if url.scheme in ("http", "https") and url.netloc]


def _asked_beside(server: Server, model: str) -> Placement | None:
    there = _over_http(server)
    return next((one for one in there if one.model_id == model), there[0] if there else None)


def url_of(placement: Placement) -> str:
    """Where the placement's server is asked for its health."""
    model = placement.model
    return first_url(ModelType(model.model_type), placement.endpoint, model.health_path or "")


def read_health(body: bytes) -> Health:
    """The protocol's fields out of the body of a 200; any other body (``OK``, ``{"status": "ok"}``) is from a
    server that tells nothing."""
    try:
        said = read_json(body)
    except Unreadable:
        said = None
    if not isinstance(said, dict) or _FIELDS.isdisjoint(said):
        return Health(True, tells=False)
    boot_id = said.get("boot_id")
    return Health(
        True,
        boot_id=str(boot_id)[:100] if isinstance(boot_id, (str, int)) else "",
        active_jobs=_count(said.get("active_jobs")),
        max_concurrent=_count(said.get("max_concurrent")),
        jobs=_jobs(said.get("jobs")),
    )


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
        found |= {"boot_id": health.boot_id, "tells_health": health.tells}
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


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _jobs(value: Any) -> frozenset[tuple[str, str]] | None:
    """None unless every entry names its attempt: half a list proves nothing."""
    if not isinstance(value, list):
        return None
    jobs = set()
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("attempt"), str):
            return None
        jobs.add((str(entry.get("job_id", "")), entry["attempt"]))
    return frozenset(jobs)
