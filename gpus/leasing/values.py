"""Values that the lease layer returns. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from gpus.protocol import CircuitState, LeaseRef, PushOutcome


@dataclass(frozen=True, slots=True)
class Wakes:
    """How many wakes (messages that tell a worker to claim) a pool needs now.

    host: of pinned workers, which have a queue of their own, else None.
    """

    pool: str
    host: str | None
    count: int


class ParkedFor(StrEnum):
    """Why a tenant's tickets are parked (`lua/includes/parked.lua`); several reasons may apply at once."""

    PAUSE = "p"
    QUOTA = "q"
    """The tenant's GPU-seconds of the day are used up."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Answer of a tenant's token bucket (`lua/take_tokens.lua`).

    taken: whether all wanted tokens were taken, else none were. left: whole tokens afterwards. wait_seconds:
    until the wanted tokens are available. full_seconds: until the bucket is full.
    """

    taken: bool
    left: int
    wait_seconds: float
    full_seconds: float


@dataclass(frozen=True, slots=True)
class StartsIn:
    """Forecast of a waiting job's start (`lua/includes/forecast.lua`).

    p50_seconds, p90_seconds: half, and nine in ten, of such jobs start within them. seen: number of real
    starts that the forecast was learnt from.
    """

    p50_seconds: float
    p90_seconds: float
    seen: int


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result of pushing one ticket.

    position: estimated tickets ahead plus one. starts: None if the job starts now, or the start cannot be
    forecast.
    """

    outcome: PushOutcome
    position: int
    starts: StartsIn | None = None


@dataclass(frozen=True, slots=True)
class Pushed:
    """Result of a push: one result per ticket, in order, and the wakes that the tickets need.

    failing: models of the tickets that no server can run now, because circuits are open.
    """

    results: tuple[PushResult, ...]
    wakes: tuple[Wakes, ...]
    failing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Follower:
    """The prefetched next job of an expired lease's slot; Redis does not record whether it began."""

    job_id: str
    attempt_id: str
    model: str


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A lease, or an uncommitted end (`is_ending`), that was not renewed in time."""

    pool: str
    ref: LeaseRef
    model: str
    tenant: str
    is_ending: bool
    worker: str
    held_seconds: float
    follower: Follower | None = None


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot in the lease table.

    state: free, leased, adoptable, settling, quarantined, or off (above the server's slot count, or its
    server is draining or off, and no job runs there). resting: its server gets no lease for a while.
    warm_model: last model leased there; a worker that loads models itself may have unloaded it since.
    held_seconds: age of the lease. expires_in_seconds: of a lease, else None. circuit: of its server.
    follower_id: attempt of the prefetched next job, or None.
    """

    slot: str
    pool: str
    state: str
    resting: bool
    warm_model: str | None
    job_id: str | None
    attempt_id: str | None
    epoch: int
    model: str | None
    held_seconds: float
    expires_in_seconds: float | None
    circuit: CircuitState = CircuitState.CLOSED
    follower_id: str | None = None


@dataclass(frozen=True, slots=True)
class SpareSlots:
    """Free slots for a job submitted now (`lua/spare_slots.lua`).

    by_model: free slots that no waiting ticket could take, in the order of the requested models. most: how
    many more jobs of any model the tenant may run now; None: no limit. failing: models that no server can run
    now, because circuits are open.
    """

    by_model: Sequence[int]
    most: int | None = None
    failing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Circuit:
    """Circuit breaker of a server or a model (`lua/includes/circuit.lua`).

    strikes: failures in a row while closed. opens: how often it opened in a row. left_seconds: until it is
    half open.
    """

    state: CircuitState
    strikes: int
    opens: int
    left_seconds: float


@dataclass(frozen=True, slots=True)
class Circuits:
    """Circuit breakers by name. A name that is missing is closed and without failures."""

    models: Mapping[str, Circuit] = field(default_factory=dict)
    servers: Mapping[str, Circuit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CircuitRules:
    """When circuit breakers open, and for how long.

    failures: in a row, that open a circuit; 0: no circuit ever opens. rest_seconds: how long it stays open,
    doubled each time it opens again, up to cap_seconds.
    """

    failures: int = 5
    rest_seconds: float = 10.0
    cap_seconds: float = 600.0


DEFAULT_RULES = CircuitRules()


@dataclass(frozen=True, slots=True)
class PoolDepth:
    """Counts of a pool's tickets and slots.

    waiting: dispatchable tickets by model. parked: tickets by model of tenants that are paused, over their
    quota, or at their limit of running jobs. wakes_pending: wakes sent and not yet used. slots: count by
    state. circuits: of models whose circuit is not closed. placed: leases of tickets that preferred a server,
    since the index was built: `near`, `elsewhere` at once, or `gave_up`, elsewhere after a wait for it.
    """

    pool: str
    waiting: Mapping[str, int]
    wakes_pending: int
    slots: Mapping[str, int]
    parked: Mapping[str, int] = field(default_factory=dict)
    circuits: Mapping[str, CircuitState] = field(default_factory=dict)
    placed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The latest heartbeat of a pinned worker. report: JSON values by name, see
    `gpus.health.pinned_servers`."""

    age_seconds: float
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """One telemetry reading of a pinned worker, and its age.

    reading: JSON values of `gpu_host.local.telemetry.measure`, as `readings.clean_reading` bounds them.
    """

    age_seconds: float
    reading: Mapping[str, Any]


SUMMARY_SECONDS = 300
"""Length of a summary of telemetry."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A measure in one summary."""

    mean: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The telemetry of a pinned worker in `SUMMARY_SECONDS`.

    age_seconds: since it began. readings: their number. measures: by the names of `gpus.leasing.readings`.
    loads: how often each model was loaded.
    """

    age_seconds: float
    readings: int
    measures: Mapping[str, Spread]
    loads: Mapping[str, int]


MAX_SERVERS = 32
"""Servers whose slots an explanation examines; of more servers, a random sample of this size."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Why one job waits, or would wait: the answer of `lua/queue_status.lua`.

    rebuilding: the index is not whole, and the other fields are unknown.

    held: the attempt that holds a slot for the job. in_line: its ticket waits. parked: reasons (letters of
    `ParkedFor`) why its tenant gets no lease. position: estimated tickets ahead plus one. own_ahead: tickets
    ahead of its own tenant and band, for models that share its servers. higher_bands: tickets of higher
    bands. tenants: number that wait in its band. running, max_running: its tenant's running jobs and their
    limit (None: no limit; then they are not counted). lead_seconds: GPU-seconds by which its tenant is ahead
    of the next tenant. estimate_seconds: of a run of this tenant and model. mean_seconds: of the pool's
    waiting jobs. working_slots: of the pool. servers: number that are on and run the model. looked_at: how
    many of them were examined. slots: their slots, by what keeps each from the job: free, busy, resting,
    circuit, quarantined, off. rest_seconds, circuit_seconds: until the first resting server, or open server
    circuit, ends. model_circuit, model_circuit_seconds: state of the model's circuit, and time until it is
    half open. free_seconds: since one of the slots is free. asked_seconds: since the last claim by a worker
    that could use a free slot; None: never. guess_seconds, p50_log, p90_log, seen: see
    `lua/includes/forecast.lua`. passed_over, most_passed_over: how often the ticket was skipped, and how
    often it may be, for a warm model or on the server that it avoids. patience_seconds: how long warm models
    may still go first. near: the server that it prefers still; "": none.
    """

    rebuilding: bool = False
    held: str | None = None
    in_line: bool = False
    parked: str = ""
    fifo: bool = False
    position: int = 1
    own_ahead: int = 0
    higher_bands: int = 0
    tenants: int = 0
    running: int = 0
    max_running: int | None = None
    lead_seconds: float = 0.0
    estimate_seconds: float = 1.0
    mean_seconds: float = 1.0
    working_slots: int = 0
    servers: int = 0
    looked_at: int = 0
    slots: Mapping[str, int] = field(default_factory=dict)
    rest_seconds: float = 0.0
    circuit_seconds: float = 0.0
    model_circuit: str = "closed"
    model_circuit_seconds: float = 0.0
    free_seconds: float = 0.0
    asked_seconds: float | None = None
    guess_seconds: float = 0.0
    seen: int = 0
    p50_log: float = 0.0
    p90_log: float = 0.0
    passed_over: int = 0
    most_passed_over: int = 0
    patience_seconds: float = 0.0
    near: str = ""


def read_queue_status(answer: str) -> QueueStatus:
    """Parse the JSON answer of `lua/queue_status.lua`; fields of a newer script are ignored."""
    found = json.loads(answer)
    known = {one.name for one in fields(QueueStatus)}
    values = {name: value for name, value in found.items() if name in known}
    values["held"] = values.get("held") or None
    if values.get("asked_seconds", 0) < 0:
        values["asked_seconds"] = None
    return QueueStatus(**values)
