"""Adversarial load: several tenants in each of three bands, several models, warm affinity, and attackers
that see everything and choose the next tickets. Records the effect on other tenants, measured from
outside."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.virtual_fleet import POOL, VirtualFleet, VirtualJob
from gpus.leasing import keys
from gpus.leasing.scripts import Client
from gpus.leasing.store import RedisLeases
from gpus.protocol import BANDS, Lease, ServerSpec, TenantSpec

MODELS = tuple(f"m{number}" for number in range(6))
SLOTS, LONGEST, PATIENCE, HEAD_START = 3, 12.0, 15.0, 60.0
ATTACKERS = {"u1": 0, "u2": 0, "n1": 1}
BACKLOGGED = {"u3": 0, "n2": 1, "b1": 2, "b2": 2}
"""These always wait for something. All: the highest band that they may use."""
PRIORITIES = {"u3": (1,), "u1": (1, 1, 2, 5, 8), "u2": (1, 1, 2, 5, 8), "n1": (1, 4, 8)}


@dataclass(frozen=True, slots=True)
class Skip:
    """The next tenant was passed over for the `count`th time, so many seconds after the first time, by a
    tenant so many GPU-seconds per weight ahead. is_warm: only the other job's model was loaded."""

    count: int
    seconds: float
    lead: float
    is_warm: bool


class AdversarialLoad:
    """reports_models: one process has loaded two models and reports them; else a slot has its last model."""

    def __init__(self, client: Client, name: str, seed: int, *, reports_models: bool) -> None:
        self.client: Any = client
        self.chance = random.Random(seed)
        self.loaded: list[str] | None = [] if reports_models else None
        self.skips: list[Skip] = []
        self.passed: Counter[str] = Counter()
        """By job: those of its tenant and band that went although they stood behind it."""
        self.ahead: Counter[str] = Counter()
        """By job: those of its tenant and band that ever stood before it."""
        self.got = [0.0, 0.0, 0.0]
        self.missing = [0.0, 0.0, 0.0]
        """By band: GPU-seconds that higher ones ever had beyond fifteen times what it got."""
        self._waiting: dict[str, VirtualJob] = {}
        self._skipped: dict[str, tuple[int, float]] = {}
        count = 1 if reports_models else SLOTS
        servers = [ServerSpec(f"s{number}", POOL, SLOTS // count, MODELS) for number in range(count)]
        self.prefix = keys.prefix(name)
        self.fleet = VirtualFleet(
            client, name, servers, patience_seconds=PATIENCE, make_leases=self._watched,
            on_start=self._began, on_end=self._ended,
        )  # fmt: skip
        self.bands = ATTACKERS | BACKLOGGED
        self.fleet.tenants([TenantSpec(tenant, 1.0, BANDS[band]) for tenant, band in self.bands.items()])
        for tenant in BACKLOGGED:
            self._top_up(tenant)
        self._attack()
        self.fleet.open()

    # -- arrivals ----------------------------------------------------------------------------------------

    def _top_up(self, tenant: str) -> None:
        """Models that are loaded nowhere, as far as known."""
        cold = [model for model in MODELS if model not in self._warm_anywhere()] or list(MODELS)
        missing = 5 - self.fleet.waiting.get(tenant, 0)
        self._submit(tenant, [self.chance.choice(cold) for _ in range(missing)], LONGEST)

    def _attack(self) -> None:
        """For loaded models, mostly with the highest priority."""
        warm = sorted(self._warm_anywhere()) or list(MODELS)
        count = self.chance.randint(1, 10)
        longest = self.chance.choice([1.0, 4.0, LONGEST])
        self._submit(self.chance.choice(list(ATTACKERS)), self.chance.choices(warm, k=count), longest)

    def _submit(self, tenant: str, models: Sequence[str], longest: float) -> None:
        jobs = []
        for model in models:
            priority = self.chance.choice(PRIORITIES.get(tenant, (1, 5, 8)))
            job = self.fleet.job(tenant, self.chance.uniform(0.5, longest), model=model, priority=priority)
            for other in self._beside(job):
                self.ahead[max(job, other, key=_own_order).id] += 1
            self._waiting[job.id] = job
            jobs.append(job)
        self.fleet.submit_all(jobs)

    def _warm_anywhere(self) -> set[str]:
        return set(self.fleet.warm.values()) if self.loaded is None else set(self.loaded)

    # -- effects --------------------------------------------------------------------------------

    def _began(self, job: VirtualJob) -> None:
        del self._waiting[job.id]
        if self.loaded is not None:
            self.loaded = [job.model, *(model for model in self.loaded if model != job.model)][:2]

    def _ended(self, job: VirtualJob) -> None:
        self.got[self.band(job)] += job.ended_at - job.started_at
        for band in (1, 2):
            self.missing[band] = max(self.missing[band], sum(self.got[:band]) - 15 * self.got[band])
        for tenant in BACKLOGGED:
            self._top_up(tenant)
        if sum(self.fleet.waiting.get(tenant, 0) for tenant in ATTACKERS) < 15 or self.chance.random() < 0.05:
            self._attack()

    def band(self, job: VirtualJob) -> int:
        return max((job.priority - 1) // 3, self.bands[job.tenant])

    def _beside(self, job: VirtualJob) -> list[VirtualJob]:
        return [
            other
            for other in self._waiting.values()
            if other.tenant == job.tenant and self.band(other) == self.band(job) and other is not job
        ]

    def _watched(self, client: Any, name: str, now_ms: Callable[[], int]) -> RedisLeases:
        leases = Watched(client, name, now_ms=now_ms)
        leases.load = self
        return leases

    def _tags_before(self, lease: Lease, band: int) -> dict[str, float]:
        """The start tags at the choice: only its own tenant's has changed since."""
        queue = f"{POOL}:{band}"
        tags = dict(self.client.zrange(f"{self.prefix}turn:{queue}", 0, -1, withscores=True))
        finish = tags.get(lease.tenant) or float(self.client.hget(f"{self.prefix}paid:{queue}", lease.tenant))
        tags[lease.tenant] = finish - lease.estimate_seconds
        return {tenant: round(tag, 6) for tenant, tag in tags.items()}

    def judge(self, lease: Lease) -> None:
        """It was given out this moment, and has not begun."""
        job = self._waiting[lease.job_id]
        tags = self._tags_before(lease, self.band(job))
        for other in self._beside(job):
            self.passed[other.id] += _own_order(other) < _own_order(job)
        turn = min(tags, key=lambda tenant: (tags[tenant], tenant))
        own = [
            one for one in self._waiting.values() if one.tenant == turn and self.band(one) == self.band(job)
        ]
        head = min(own, key=_own_order)
        count, since = self._skipped.pop(head.id, (0, self.fleet.now))
        if head is job:
            return
        warm = [self.fleet.warm.get(lease.slot)] if self.loaded is None else self.loaded
        is_warm = job.model in warm and head.model not in warm
        seconds, lead = self.fleet.now - since, tags[job.tenant] - tags[turn]
        self.skips.append(Skip(count + 1, seconds, lead, is_warm))
        self._skipped[head.id] = count + 1, since


def _own_order(job: VirtualJob) -> tuple[float, str]:
    return job.came_at + job.priority * HEAD_START, job.id


class Watched(RedisLeases):
    """Each lease is judged the moment it was given out."""

    load: AdversarialLoad

    def claim(self, *args: Any, **asked: Any) -> Lease | None:
        return self._judged(super().claim(*args, **asked, warm=self.load.loaded))

    def release(self, *args: Any, **asked: Any) -> Lease | None:
        return self._judged(super().release(*args, **asked, warm=self.load.loaded))

    def _judged(self, lease: Lease | None) -> Lease | None:
        if lease is not None:
            self.load.judge(lease)
        return lease
