"""The load of a big fleet: tenants of three kinds, their models, bands and jobs. Pure; seeded.

- `flood`: one tenant in twenty; together they keep the queue at its length; three jobs of ten are bulk;
- `steady`: 45 of 100; each sends half of what its fair share of the slots would run, job by job;
- `light`: the rest; each sends a twentieth of its share. One steady or light tenant in ten was granted the
  urgent band, and requests it for every second job.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

FLOOD, STEADY, LIGHT = "flood", "steady", "light"
LOAD_OF_SHARE = {STEADY: 0.5, LIGHT: 0.05}
URGENT, NORMAL, BULK = 2, 5, 8
BAND_NAMES = {URGENT: "urgent", NORMAL: "normal", BULK: "bulk"}
BULK_SHARE, URGENT_SHARE = 0.3, 0.5
MODELS_OF_STEADY = 3
LONGEST = 8.0
"""Multiple of a model's mean."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the fleet and of its load.

    waiting: the queue's length, kept. seconds: virtual; the first `warm_up_seconds` don't count.
    mean_seconds: of a job, over all models. swap_seconds: time for a slot to load another model."""

    slots: int = 1000
    models: int = 20
    tenants: int = 100
    waiting: int = 20_000
    seconds: float = 120.0
    warm_up_seconds: float = 40.0
    mean_seconds: float = 20.0
    swap_seconds: float = 8.0
    models_per_pool: int = 4
    slots_per_server: int = 8
    slots_per_worker: int = 500
    fleets: int = 1
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("slots", "models", "tenants", "models_per_pool", "slots_per_server", "slots_per_worker"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 <= self.warm_up_seconds < self.seconds:
            raise ValueError("the warm-up must end before the run")
        if self.slots < self.pools * self.slots_per_server:
            raise ValueError(
                f"{self.pools} pools with a server of {self.slots_per_server} slots each are more than"
                f" {self.slots} slots: ask for fewer models or more slots"
            )
        if not 1 <= self.fleets <= self.pools:
            raise ValueError(f"{self.pools} pools are of 1 to {self.pools} fleets")

    @property
    def pools(self) -> int:
        return -(-self.models // self.models_per_pool)

    @property
    def workers(self) -> int:
        return -(-self.slots // self.slots_per_worker)

    def pool_of(self, model: str) -> str:
        return f"pool-{int(model.removeprefix('model-')) // self.models_per_pool}"

    def models_of(self, pool: int) -> tuple[str, ...]:
        first = pool * self.models_per_pool
        return tuple(model_name(n) for n in range(first, min(first + self.models_per_pool, self.models)))

    def servers(self) -> Iterator[tuple[str, int, int]]:
        """Yield (name, slots, number of its pool): pools take turns, so that they are equally large."""
        left, number = self.slots, 0
        while left > 0:
            slots = min(self.slots_per_server, left)
            yield f"server-{number}", slots, number % self.pools
            left, number = left - slots, number + 1


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant. number: from 0. per_second: jobs sent at random; 0: it floods."""

    number: int
    kind: str
    models: tuple[str, ...]
    is_urgent: bool
    per_second: float

    @property
    def name(self) -> str:
        return f"tenant-{self.number}"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job as its client requests it."""

    model: str
    priority: int
    seconds: float


@dataclass
class Load:
    """Tenants and their jobs. arrivals: random jobs per second of all steady and light tenants together."""

    size: Size
    senders: list[Sender] = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.size.seed} load")
        size = self.size
        floods = max(1, size.tenants // 20)
        steadies = round(size.tenants * 0.45)
        share = size.slots / size.tenants / size.mean_seconds
        each = max(2, -(-2 * size.models // floods))
        self.senders = []
        for number in range(size.tenants):
            kind = FLOOD if number < floods else STEADY if number < floods + steadies else LIGHT
            if kind == FLOOD:
                names = {model_name((number * each + n) % size.models) for n in range(each)}
            else:
                count = min(size.models, MODELS_OF_STEADY if kind == STEADY else 1)
                names = {model_name(n) for n in self._chance.sample(range(size.models), count)}
            self.senders.append(
                Sender(
                    number,
                    kind,
                    tuple(sorted(names)),
                    is_urgent=kind != FLOOD and number % 10 == 0,
                    per_second=share * LOAD_OF_SHARE.get(kind, 0.0),
                )
            )
        self.floods = [one for one in self.senders if one.kind == FLOOD]
        self._others = [one for one in self.senders if one.kind != FLOOD]
        self._rates = [one.per_second for one in self._others]
        self.arrivals = sum(self._rates)

    def next_arrival(self) -> tuple[float, Sender] | None:
        """Return the seconds until the next random job, and its sender; None: there are none."""
        if not self.arrivals:
            return None
        (sender,) = self._chance.choices(self._others, self._rates)
        return self._chance.expovariate(self.arrivals), sender

    def job(self, sender: Sender) -> JobRequest:
        model = self._chance.choice(sender.models)
        priority = NORMAL
        if sender.kind == FLOOD and self._chance.random() < BULK_SHARE:
            priority = BULK
        elif sender.is_urgent and self._chance.random() < URGENT_SHARE:
            priority = URGENT
        mean = self.mean_seconds(model)
        return JobRequest(model, priority, min(self._chance.expovariate(1 / mean), LONGEST * mean))

    def mean_seconds(self, model: str) -> float:
        """Return half to one and a half times the mean of all models."""
        return self.size.mean_seconds * (0.5 + int(model.removeprefix("model-")) % 5 / 4)


def model_name(number: int) -> str:
    return f"model-{number}"
