"""What the lease layer answers, as values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from gpus.protocol import CircuitState, LeaseRef, PushOutcome


@dataclass(frozen=True, slots=True)
class Wakes:
    """How many wakes a pool needs now. host: for a pinned driver's queue, else None."""

    pool: str
    host: str | None
    count: int


class ParkedFor(StrEnum):
    """Why a tenant's tickets are held back: a letter each, and it goes on when the last one is gone."""

    PAUSE = "p"
    QUOTA = "q"
    """Its GPU-seconds of the day are used up."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """taken: all that were wanted, else none. left: whole ones, after this. wait_seconds: until as many as
    wanted are there. full_seconds: until the bucket is full."""

    taken: bool
    left: int
    wait_seconds: float
    full_seconds: float


@dataclass(frozen=True, slots=True)
class StartsIn:
    """When a waiting job starts: half of such jobs within `p50_seconds` from now, nine in ten within
    `p90_seconds`. seen: real starts that this was learnt from."""

    p50_seconds: float
    p90_seconds: float
    seen: int


@dataclass(frozen=True, slots=True)
class PushResult:
    """position: estimated tickets ahead plus one, from 1. starts: None where it starts now, or nobody can
    know."""

    outcome: PushOutcome
    position: int
    starts: StartsIn | None = None


@dataclass(frozen=True, slots=True)
class Pushed:
    """One result per ticket, in order, and the wakes that became useful by them. failing: models of theirs
    that no server can run now, because circuits are open."""

    results: tuple[PushResult, ...]
    wakes: tuple[Wakes, ...]
    failing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Follower:
    """What the slot would have run next; whether it began, its worker knew."""

    job_id: str
    attempt_id: str
    model: str


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A lease (or an unconfirmed end, `settling`) that nobody renewed in time."""

    pool: str
    ref: LeaseRef
    model: str
    tenant: str
    settling: bool
    worker: str
    held_seconds: float
    follower: Follower | None = None


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot as the lease table sees it. state: free, leased, adoptable, settling, quarantined, off.

    off: above the server's slot count, or its server is draining or off, and nothing runs there.
    warm_model: what was leased there last; a worker that holds models itself may have unloaded it since.
    expires_in_seconds: of a lease, else None. circuit: of its server. follower_id: the attempt that runs
    there next, if one is claimed.
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
    """by_model: free slots that no waiting ticket could take, in the order that was asked for. most: how many
    more jobs of whatever model the tenant may run now; None: no limit. failing: models that no server can run
    now, because circuits are open."""

    by_model: Sequence[int]
    most: int | None = None
    failing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Circuit:
    """Of a server or a model. strikes: failures in a row while it is closed; opens: how often it opened in a
    row; left_seconds: until it is half open."""

    state: CircuitState
    strikes: int
    opens: int
    left_seconds: float


@dataclass(frozen=True, slots=True)
class Circuits:
    """By name; who is not named is closed and did not fail last."""

    models: Mapping[str, Circuit] = field(default_factory=dict)
    servers: Mapping[str, Circuit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CircuitRules:
    """failures: in a row, that open a circuit; 0: none ever opens. It rests so long, twice as long each time
    it opens again, up to the cap."""

    failures: int = 5
    rest_seconds: float = 10.0
    cap_seconds: float = 600.0


DEFAULT_RULES = CircuitRules()


@dataclass(frozen=True, slots=True)
class PoolDepth:
    """waiting: tickets that a slot may take, by model; parked: those of tenants that are paused, over their
    quota, or run as many jobs as they may. wakes_pending: wakes sent and not yet used. slots: count by state.
    circuits: of models whose circuit is not closed."""

    pool: str
    waiting: Mapping[str, int]
    wakes_pending: int
    slots: Mapping[str, int]
    parked: Mapping[str, int] = field(default_factory=dict)
    circuits: Mapping[str, CircuitState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beat:
    """What a pinned worker said last, and how long ago. said: JSON values by name."""

    age_seconds: float
    said: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a pinned worker measured, and how long ago it told. reading: JSON values, as
    `gpu_host.local.telemetry.measure` makes them."""

    age_seconds: float
    reading: Mapping[str, Any]


MOST_SERVERS = 32
"""Servers whose slots are looked at one by one; of more, so many by chance."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the line knows of one job that waits or might: the answer of `lua/outlook.lua`.

    rebuilding: the index is not whole, and nothing else is known.

    held: the attempt that has a slot for the job. parked: letters for why its tenant gets none. position:
    estimated tickets ahead plus one; own_ahead: of its own tenant and band, for models that share its
    servers; higher_bands: tickets there; tenants: who take turns in its band. running, most_running: jobs
    of its tenant now, and at most (None: no limit; then they are not counted). lead_seconds: GPU-seconds
    by which its tenant is ahead of the one whose turn it is. estimate_seconds: of a run of this tenant
    and model; mean_seconds: of the pool's waiting jobs. working_slots: of the pool. servers: that are on
    and run the model; looked_at: so many of them. slots: theirs, by what keeps each from the job: free,
    busy, resting, circuit, quarantined, off. free_seconds: since one of them is; asked_seconds: since a
    worker asked for work that could use a free one; None: none ever did. guess_seconds, p50_log, p90_log,
    seen: see `forecast.lua`. passed_over, most_passed_over: how often others went in its place, for a model
    that is loaded or on the server that it avoids; patience_seconds: how long the former may still happen.
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
    most_running: int | None = None
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


def read_outlook(answer: str) -> Outlook:
    found = json.loads(answer)
    known = {one.name for one in fields(Outlook)}
    values = {name: value for name, value in found.items() if name in known}
    values["held"] = values.get("held") or None
    if values.get("asked_seconds", 0) < 0:
        values["asked_seconds"] = None
    return Outlook(**values)
