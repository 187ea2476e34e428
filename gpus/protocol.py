"""The values that cross the floors: tickets, leases, slots, what a model is. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

BANDS = ("urgent", "normal", "bulk")
"""The three bands of the line; priority 1–3, 4–6, 7–9."""
STARTED_HERE = "local"
"""Scheme of the endpoint of a model that the worker itself runs (`gpu_host.local`)."""
MAX_SLOTS = 1024
"""Of a server."""
NODE = "gpu-dispatcher node"
"""How the reference GPU server (`gpu_host.node`) names itself in its health."""
FIRST_LAYOUT = 6
"""Of the keys of a fleet's index in Redis, where no row of `FleetIndex` says otherwise; never raised."""


def band_of(priority: int) -> int:
    """Index into `BANDS` for a priority of 1..9."""
    return (priority - 1) // 3


def slot_name(server: str, index: int) -> str:
    """``flux-server-1/0``"""
    return f"{server}/{index}"


def split_slot(slot: str) -> tuple[str, int]:
    server, _, index = slot.rpartition("/")
    return server, int(index)


def standing_band(priority: int, highest_band: str) -> int:
    """Index into `BANDS` of where a job stands whose tenant was granted no higher band than that."""
    return max(band_of(priority), BANDS.index(highest_band))


REGISTRY_CHANGED = "registry"
"""Announced in the place of a job's id: servers or models were registered."""


class QueueAlgorithm(StrEnum):
    FAIR = "fair"
    FIFO = "fifo"


class DesiredState(StrEnum):
    """What the operator wants of a server."""

    ON = "on"
    DRAINING = "draining"
    OFF = "off"


class ReleaseMode(StrEnum):
    """What becomes of a slot when its lease ends."""

    SETTLE = "settle"
    """Clean end; the slot stays in this process until the end is committed."""
    FREE = "free"
    """Nothing ran and nothing needs a commit (a stale ticket): free at once, charged nothing."""
    SUSPECT = "suspect"
    """The GPU may still be busy: quarantined until a probe proves the slot free."""
    ADOPT = "adopt"
    """Hand-over: whoever claims next goes on with the same attempt (its remote id is committed)."""


class ExpiryVerdict(StrEnum):
    """What becomes of an expired lease."""

    ADOPTABLE = "adoptable"
    QUARANTINED = "quarantined"
    FREE = "free"
    FOLLOWED = "followed"
    """It ended, and its follower has begun: that one's lease is judged next."""


class CircuitKind(StrEnum):
    """What has a circuit breaker."""

    SERVER = "server"
    MODEL = "model"


class CircuitState(StrEnum):
    """Of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    """It failed again and again: it rests."""
    HALF_OPEN = "half_open"
    """Its rest is over: one job tries, and closes or opens it."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A waiting job's place in the line.

    place_us: when the job first stood in line, microseconds since the epoch; a retry keeps it.
    avoid_server: the server that just lost this job; another one is tried first.
    """

    job_id: str
    model: str
    tenant: str
    priority: int
    place_us: int
    avoid_server: str | None = None

    @property
    def band(self) -> int:
        return band_of(self.priority)


class PushOutcome(StrEnum):
    LEASED = "leased"
    """A slot is free and nobody is ahead: a forecast."""
    QUEUED = "queued"
    DUPLICATE = "duplicate"
    """The ticket stands in line already."""
    HELD = "held"
    """The job is leased or its end is being committed; it must not stand in line."""


class LeaseRef(NamedTuple):
    """The identity under which everything that concerns a lease is idempotent."""

    slot: str
    job_id: str
    attempt_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The time-bound right to one slot.

    adopted: the attempt was running under another worker; go on with its remote id.
    estimate_seconds: what the tenant was charged at dispatch, in GPU-seconds.
    fence: grows with every lease of this slot, also across a flushed Redis (it is made from its clock).
    leased_at_ms: Redis' clock, milliseconds since the epoch.
    """

    pool: str
    slot: str
    job_id: str
    attempt_id: str
    epoch: int
    model: str
    tenant: str
    priority: int
    fence: int
    leased_at_ms: int
    estimate_seconds: float
    adopted: bool = False

    @property
    def ref(self) -> LeaseRef:
        return LeaseRef(self.slot, self.job_id, self.attempt_id, self.epoch)

    @property
    def server(self) -> str:
        return split_slot(self.slot)[0]

    @property
    def slot_index(self) -> int:
        return split_slot(self.slot)[1]


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What the line needs to know of a server. host: None, or the pinned driver's host."""

    name: str
    pool: str
    slots: int
    models: tuple[str, ...]
    desired: DesiredState = DesiredState.ON
    host: str | None = None


@dataclass(frozen=True, slots=True)
class PoolSpec:
    name: str
    algorithm: QueueAlgorithm = QueueAlgorithm.FAIR
    affinity_patience_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """What the line needs to know of a tenant, by the name it has in tickets; the defaults are a new one's.

    weight: its share of GPU-seconds relative to others. highest_band: one of `BANDS`; its jobs stand no
    higher. max_running: leases at once in all pools of the fleet; None: no limit. Raises ValueError.
    """

    name: str
    weight: float = 1.0
    highest_band: str = "normal"
    max_running: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"a weight is a positive number, that of {self.name} is {self.weight}")
        if self.highest_band not in BANDS:
            raise ValueError(f"a band is one of {', '.join(BANDS)}, not {self.highest_band!r}")
        if self.max_running is not None and self.max_running < 1:
            raise ValueError(
                f"a limit of running jobs is 1 or more, that of {self.name} is {self.max_running}"
            )


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """How a model is run: the founding document's fields, then our own.

    poll_interval, max_poll_time, max_run_seconds: seconds. min_run_seconds: the shortest `max_run_seconds` of
    a job; None: as the settings say. max_queued: jobs that may wait for it; None: any.
    max_queued_seconds: how long one may wait for it in all; None: as the settings say.
    remote_model: what its servers call it, where they serve several; None: its own name. keep_alive_seconds:
    how long an Ollama server keeps it loaded after a run (-1: for ever); None: as payload or server say.
    model_type: the name of the runner that speaks its servers' protocol.
    """

    name: str
    pool: str
    model_type: str = "sync"
    poll_endpoint_template: str | None = None
    id_field: str | None = None
    poll_interval: float = 2.0
    max_poll_time: float = 600.0
    max_retries: int = 50
    max_run_seconds: float | None = None
    min_run_seconds: float | None = None
    at_most_once: bool = False
    payload_schema: Mapping[str, Any] | None = None
    cancel_endpoint_template: str | None = None
    max_response_bytes: int = 16 * 1024 * 1024
    max_queued: int | None = None
    max_queued_seconds: float | None = None
    remote_model: str | None = None
    keep_alive_seconds: float | None = None
    health_path: str | None = None

    @property
    def run_limit_seconds(self) -> float:
        """The longest an attempt may hold its slot, seconds."""
        if self.max_run_seconds is not None:
            return self.max_run_seconds
        return self.max_poll_time


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is run on a server.

    headers: the server's secret request headers, in the clear: never log them. is_off: an operator switched
    the server off: nothing is begun there any more. tells_health: False: it has no health endpoint; None: not
    known yet.
    """

    server: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_pem: str | None = None
    max_slots: int = 1
    is_off: bool = False
    tells_health: bool | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.server!r}, {self.url!r})"


class Clock(Protocol):
    """Time, injected. now: for rows; monotonic: for spans, seconds."""

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
