"""The values of the plain model: tickets, leases, slots, servers, bands. Times in microseconds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

HEAD_START_US, LEASE_US = 60_000_000, 15_000_000
ADOPTION_REST_CAP_US = 30_000_000
LETS_PASS, MAX_SKIPS, WALK, NEWEST_COUNTS = 15, 8, 8, 0.05
NEAR_US, NEAR_SLOTS = 2_000_000, 16
LAG_SECONDS, LAG_JOBS = 600, 8
Warm = Sequence[str] | None
"""Models that the caller reports as loaded; None: without a report, the slot's last model counts."""


@dataclass
class Waiting:
    """A ticket in line. avoid, near: '' for none."""

    job: str
    model: str
    tenant: str
    priority: int
    score: int
    avoid: str
    near: str = ""
    skips: int = 0
    skipped_us: int = 0

    @property
    def asked(self) -> int:
        """The band it asks for."""
        return (self.priority - 1) // 3

    @property
    def level(self) -> int:
        return (self.priority - 1) % 3

    @property
    def member(self) -> str:
        return f"{self.level}{self.job}"

    @property
    def key(self) -> tuple[str, int]:
        return self.job, self.priority


@dataclass
class Held:
    """A lease, a follower's too, or the end of one."""

    job: str
    attempt: str
    epoch: int
    model: str
    tenant: str
    priority: int
    charged: float
    leased_us: int
    worker: str
    slot: str
    host: str
    band: int
    charged_bands: frozenset[int]
    asked: str | None = None
    expires_us: int = 0
    fence: int = 0


@dataclass
class Slot:
    """follower: the prefetched next job. rest_us: how long it rested after its last failed adoption."""

    name: str
    state: str
    since_us: int
    warm: str | None = None
    lease: Held | None = None
    listed: bool = False
    fence: int = 0
    follower: Held | None = None
    rest_us: int = 0
    rests_until: int = 0

    @property
    def held(self) -> Held:
        assert self.lease is not None
        return self.lease


@dataclass
class Server:
    name: str
    slots: int
    models: tuple[str, ...]
    desired: str
    host: str
    rests_until: int = 0
    rests: bool = False
    gone: bool = False

    @property
    def on(self) -> bool:
        return self.desired == "on"

    @property
    def class_id(self) -> str:
        """The scripts' own id: it decides ties."""
        text = "".join(f",{model}" for model in self.models) + ","
        return f"{len(self.models):03d}-{hashlib.sha1(text.encode()).hexdigest()[:12]}"


@dataclass
class Band:
    turn: dict[str, float] = field(default_factory=dict)
    paid: dict[str, float] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    virtual: float = 0.0
    allowance: float = 0.0


@dataclass
class Rules:
    weight: float = 1.0
    band: int = 1
    most: int | None = None
