"""Values shared by all packages: tickets, leases, slots, specifications of servers, pools, tenants, models.
Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from foundation.signed_urls import without_signatures
from foundation.stored_schema import StoredSchema
from foundation.texts import printable

BANDS = ("urgent", "normal", "bulk")
"""Priority bands of the queue: priority 1–3, 4–6, 7–9."""
STARTED_HERE = "local"
"""URL scheme of the endpoint of a model that the worker runs itself (`gpu_host.local`)."""
MAX_SLOTS = 1024
"""Maximum number of slots of a server."""
NODE = "gpu-dispatcher node"
"""Name of the reference GPU server (`gpu_host.node`) in its health answer."""
FIRST_LAYOUT = 6
"""Key layout of a fleet's index without a `FleetIndex` row; never raised."""


def band_of(priority: int) -> int:
    """Index into `BANDS` for a priority of 1..9."""
    return (priority - 1) // 3


def slot_name(server: str, index: int) -> str:
    """The name of a slot, such as ``flux-server-1/0``."""
    return f"{server}/{index}"


def split_slot(slot: str) -> tuple[str, int]:
    """The server's name and the slot's index."""
    server, _, index = slot.rpartition("/")
    return server, int(index)


def effective_band(priority: int, highest_band: str) -> int:
    """Index into `BANDS` of a job's actual band: its priority's, but no higher than the tenant's highest
    band."""
    return max(band_of(priority), BANDS.index(highest_band))


MAX_PROGRESS_TEXT = 200
"""Characters of the text that a run reports with its progress."""


class Progress(NamedTuple):
    """Progress of a run. value: 0 to 1. text: one printable line about it, may be empty."""

    value: float
    text: str = ""

    def as_json(self) -> float | dict[str, Any]:
        """Return the number; with a text ``{"value": …, "text": …}``."""
        return {"value": self.value, "text": self.text} if self.text else self.value


def parse_progress(said: Any) -> Progress | None:
    """Return the progress in a JSON value of a server or model: a number, or ``{"value": …, "text": …}``.

    None if it has no number. Numbers beyond 0 to 1 are limited to that, texts to `MAX_PROGRESS_TEXT`."""
    value, text = (said.get("value"), said.get("text")) if isinstance(said, Mapping) else (said, None)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    line = printable(text[:MAX_PROGRESS_TEXT].strip()) if isinstance(text, str) else ""
    return Progress(float(min(1, max(0, value))), without_signatures(line[:MAX_PROGRESS_TEXT]))


REGISTRY_CHANGED = "registry"
"""Announced in place of a job id when servers or models were registered."""


class QueueAlgorithm(StrEnum):
    """Order of a pool's tickets. FAIR: by tenants' GPU-seconds; FIFO: by place."""

    FAIR = "fair"
    FIFO = "fifo"


class DesiredState(StrEnum):
    """State of a server that the operator has set."""

    ON = "on"
    DRAINING = "draining"
    OFF = "off"


class ReleaseMode(StrEnum):
    """What happens to a slot when its lease ends."""

    ENDED = "ended"
    """Clean end: Redis stores it, uncommitted; the slot stays with this process until it is confirmed."""
    FREE = "free"
    """No job ran and no end needs a commit (a stale ticket): free at once, without a charge."""
    SUSPECT = "suspect"
    """The GPU may still be busy: quarantined until a probe proves the slot free."""
    ADOPT = "adopt"
    """Hand-over: the next claim continues the same attempt (its remote id is committed)."""


class ExpiryVerdict(StrEnum):
    """The sweep's decision on an expired lease (`gpus/leasing/lua/resolve_expired.lua`)."""

    ADOPTABLE = "adoptable"
    QUARANTINED = "quarantined"
    FREE = "free"
    FOLLOWED = "followed"
    """The attempt ended and its follower has begun: the follower's lease is examined next."""


class CircuitKind(StrEnum):
    """The kinds of circuit breakers."""

    SERVER = "server"
    MODEL = "model"


class CircuitState(StrEnum):
    """State of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    """After several failures in a row it takes no jobs for a while."""
    HALF_OPEN = "half_open"
    """After that time one job is the trial, and closes or opens the circuit."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A waiting job in the queue.

    place_us: time of the job's first push, µs since the epoch; a retry keeps it. avoid_server: server that
    just lost this job; other servers are tried first. near_server: server that has files of this job, so that
    it is tried first, for a while.
    """

    job_id: str
    model: str
    tenant: str
    priority: int
    place_us: int
    avoid_server: str | None = None
    near_server: str | None = None

    @property
    def band(self) -> int:
        return band_of(self.priority)


class PushOutcome(StrEnum):
    """Outcome of pushing a ticket (`gpus/leasing/lua/push.lua`)."""

    LEASED = "leased"
    """A slot is free for it: a forecast."""
    QUEUED = "queued"
    DUPLICATE = "duplicate"
    """The ticket is waiting already."""
    HELD = "held"
    """The job is leased or its end is being committed; no ticket was added."""


class LeaseRef(NamedTuple):
    """The identity of a lease, by which all calls about it are idempotent."""

    slot: str
    job_id: str
    attempt_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease of one slot.

    adopted: whether the attempt was running under another worker, and continues with its remote id.
    epoch: raised by each takeover; rejects late writes to the database. estimate_seconds: charge at dispatch,
    in GPU-seconds. fence: rejects late requests at the GPU server; grows with every lease of this slot, even
    across a flushed Redis, because it derives from the clock. leased_at_ms: by Redis' clock, milliseconds
    since the epoch.
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
    """A server as the lease layer needs it. host: of the worker of a pinned server, else None. registered_us:
    since the epoch; a later one than before is another server of the same name; 0: unknown."""

    name: str
    pool: str
    slots: int
    models: tuple[str, ...]
    desired: DesiredState = DesiredState.ON
    host: str | None = None
    registered_us: int = 0


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool as the lease layer needs it. affinity_patience_seconds: how long warm models may go first."""

    name: str
    algorithm: QueueAlgorithm = QueueAlgorithm.FAIR
    affinity_patience_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's rules for the lease layer. Raises ValueError.

    name: as in tickets. weight: share of GPU-seconds relative to other tenants. highest_band: one of `BANDS`;
    its jobs get no higher band. max_running: limit of leases in all pools of the fleet; None: no limit.
    """

    name: str
    weight: float = 1.0
    highest_band: str = "normal"
    max_running: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"a weight must be a positive number, that of {self.name} is {self.weight}")
        if self.highest_band not in BANDS:
            raise ValueError(f"a band must be one of {', '.join(BANDS)}, not {self.highest_band!r}")
        if self.max_running is not None and self.max_running < 1:
            raise ValueError(
                f"a limit of running jobs must be 1 or more, that of {self.name} is {self.max_running}"
            )


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """How a model is run. Each field is an option in `gpus.models.ModelConfig`.

    model_type: name of the runner for its servers' protocol. poll_interval, max_poll_time, max_run_seconds:
    seconds. min_run_seconds: the shortest `max_run_seconds` of a job; None: by the settings.
    inline_result_bytes: a larger result becomes an artifact, 0: none does; None: by the settings. max_queued:
    limit of waiting jobs; None: no limit. max_queued_seconds: limit of a job's total waiting time; None: by
    the settings. remote_model: the model's name on its servers; None: its own name. keep_alive_seconds: how
    long an Ollama server keeps it loaded after a run (-1: for ever); None: by the payload or the server.
    output_files: paths to texts of its results that hold files (`foundation.json_places`). result_schema: a
    JSON Schema of its results.
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
    payload_schema: Mapping[str, Any] | StoredSchema | None = None
    cancel_endpoint_template: str | None = None
    max_response_bytes: int = 16 * 1024 * 1024
    inline_result_bytes: int | None = None
    max_queued: int | None = None
    max_queued_seconds: float | None = None
    remote_model: str | None = None
    keep_alive_seconds: float | None = None
    health_path: str | None = None
    output_files: Sequence[str] | None = None
    result_schema: Mapping[str, Any] | bool | StoredSchema | None = None

    @property
    def may_have_files(self) -> bool:
        """Return True if places in the results may hold files."""
        return bool(self.output_files) or self.result_schema is not None

    @property
    def run_limit_seconds(self) -> float:
        """How long an attempt may hold its slot, in seconds."""
        if self.max_run_seconds is not None:
            return self.max_run_seconds
        return self.max_poll_time


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint of a model on a server.

    headers: the server's secret request headers, decrypted: never log them. ca_pem: the only trusted CA;
    None: the system's CAs. is_off: whether an operator switched the server off, so that no run may begin.
    tells_health: False: the server has no health endpoint; None: not known yet.
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
    """An injected clock. now: wall time, for rows. monotonic: seconds, for durations."""

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The host's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
