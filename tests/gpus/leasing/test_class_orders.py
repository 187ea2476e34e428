"""Broad tenants are found in order by every slot of their models, under any pushes, failures and pauses."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from gpus.errors import Verdict
from gpus.leasing import scripts
from gpus.leasing.library import library_code
from gpus.leasing.scripts import Client
from gpus.leasing.values import CircuitRules
from gpus.protocol import BANDS, CircuitState, Lease
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.plain_values import Server

MODELS, TENANTS = ("flux", "llm", "sdxl", "zimg"), ("a", "b", "c", "d", "e")
FAILING = MODELS[:2]
SERVERS = ("s1", "s2", "s3")
CLASSES = (MODELS, MODELS[:2], MODELS[2:], MODELS[1:3], ("llm",), ("sdxl",))
RULES = CircuitRules(failures=2, rest_seconds=5.0, cap_seconds=20.0)
FEWER = {"MAX_ORDERED = 4": "MAX_ORDERED = 2", "MAX_ASIDE = 16": "MAX_ASIDE = 1"}


def test_a_slot_goes_to_the_lowest_start_tag_among_tenants_of_its_models(
    client: Client, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = library_code()
    for usual, here in FEWER.items():
        assert code.count(usual) == 1
        code = code.replace(usual, here)
    monkeypatch.setattr(scripts, "library_code", lambda: code)
    seen: set[str] = set()
    for seed in range(2):
        fuzz = Fuzz(LeaseHarness(client, f"{fleet}-{seed}", circuit_rules=RULES).open(), seed)
        for _ in range(200):
            fuzz.step()
            seen |= fuzz.check()
        fuzz.wipe()
    assert seen == {"named by class", "set aside"}, "or it has not seen what it is about"


def class_id(models: tuple[str, ...]) -> str:
    return Server("", 0, models, "on", "").class_id


@dataclass
class Queue:
    """One band: the tags of waiting tenants, and the models of their tickets."""

    at: str
    tags: dict[str, float]
    waits: dict[str, set[str]]
    broad: set[str]


class Fuzz:
    def __init__(self, harness: LeaseHarness, seed: int) -> None:
        self.harness, self.chance = harness, random.Random(seed)
        self.servers: dict[str, tuple[str, ...]] = {}
        self.bands = dict.fromkeys(TENANTS, 1)
        self.live: list[Lease] = []
        self.number = 0
        harness.configured_tenants = set(TENANTS)
        harness.pool(patience=0)
        for name in SERVERS:
            self.configure(name, MODELS)

    def step(self) -> None:
        kinds = {
            self.push: 18, self.claim: 12, self.end: 12, self.remove: 4, self.wait: 3, self.change: 4,
            self.pause: 1, self.grant: 1, self.forget: 1,
        }  # fmt: skip
        self.chance.choices(list(kinds), list(kinds.values()))[0]()

    # -- steps --------------------------------------------------------------------------------

    def push(self) -> None:
        self.number += 1
        self.harness.push(
            f"j{self.number:05}",
            model=self.chance.choice(MODELS),
            tenant=self.chance.choice(TENANTS),
            priority=self.chance.choice([2, 5, 5, 8]),
        )

    def claim(self) -> None:
        self.number += 1
        queues, blocked, half_open = self.queues(), self.blocked(), self.half_open()
        lease = self.harness.claim(f"a{self.number}")
        if lease is None:
            free = {name for name in self.servers if "free" in self.harness.states(name)}
            able = {model for name in free for model in self.servers[name]} - blocked
            assert not any(waits & able for queue in queues for waits in queue.waits.values())
            return
        queue = queues[max((lease.priority - 1) // 3, self.bands[lease.tenant])]
        able = set(self.servers[lease.server]) - blocked
        self.live.append(lease)
        if lease.model in half_open:
            return  # it tries: a tenant that did not fail goes first (test_circuits_by_tenant.py)
        assert lease.tenant == min(
            (one for one, waits in queue.waits.items() if waits & able),
            key=lambda one: (queue.tags[one], one),
        )

    def end(self) -> None:
        if not self.live:
            return
        lease = self.live.pop(self.chance.randrange(len(self.live)))
        self.number += 1
        fails = lease.model in FAILING and self.chance.random() < 0.7
        following = self.harness.release(
            lease,
            gpu_seconds=self.chance.choice([0.0, 1.0, 30.0]),
            verdict=Verdict.MODEL if fails else Verdict.WELL,
            next_attempt_id=self.chance.choice([None, f"n{self.number}"]),
        )
        self.harness.leases.confirm_ends([lease.ref])
        if following is not None:
            self.live.append(following)

    def remove(self) -> None:
        if self.harness.tickets:
            self.harness.leases.remove(
                POOL, self.harness.tickets[self.chance.choice(list(self.harness.tickets))]
            )

    def wait(self) -> None:
        self.harness.wait(self.chance.choice([1.0, 6.0]))

    def pause(self) -> None:
        self.harness.leases.set_paused_tenants(POOL, [one for one in TENANTS if self.chance.random() < 0.2])

    def grant(self) -> None:
        tenant, band, most = (
            self.chance.choice(TENANTS),
            self.chance.randrange(3),
            self.chance.choice([None, None, 2]),
        )
        self.bands[tenant] = band
        self.harness.tenant(tenant, band=BANDS[band], most=most)

    def change(self) -> None:
        self.configure(self.chance.choice(SERVERS), self.chance.choice(CLASSES))

    def configure(self, name: str, models: tuple[str, ...]) -> None:
        self.servers[name] = models
        self.harness.server(name, 2, models)

    def forget(self) -> None:
        self.harness.leases.forget_server(self.chance.choice(SERVERS))

    # -- invariants ------------------------------------------------------------------------------

    def check(self) -> set[str]:
        """The observed state."""
        if not any(self.zset(f"turn:{POOL}:{band}:{model}") for band in range(3) for model in MODELS):
            return set()  # one model so far: its order is the queue's
        seen: set[str] = set()
        classes, with_circuit = self.hash("classes"), self.hash("kept")
        for queue in self.queues():
            assert self.harness.client.smembers(f"{self.harness.prefix}broad:{queue.at}") == queue.broad
            by_model = {model: self.zset(f"turn:{queue.at}:{model}") for model in MODELS}
            by_class = {models: self.zset(f"class_turn:{queue.at}:{class_id(models)}") for models in CLASSES}
            for named in (*by_model.values(), *by_class.values()):
                assert named.items() <= queue.tags.items()
            for models, named in by_class.items():
                assert named.keys() <= (queue.broad if class_id(models) in classes else set())
            for model, named in by_model.items():
                waiting = {one for one, waits in queue.waits.items() if model in waits}
                aside = named.keys() & queue.broad
                assert waiting - queue.broad == named.keys() - aside
                assert aside <= (waiting if model in with_circuit else set())
                for models, others in by_class.items():
                    if model in models and class_id(models) in classes:
                        assert waiting & queue.broad <= others.keys() | aside
                seen |= {"set aside"} if aside else set()
            seen |= {"named by class"} if any(by_class.values()) else set()
        return seen

    def wipe(self) -> None:
        """No key is left."""
        assert self.harness.leases.begin_rebuild("harness")
        while not self.harness.leases.wipe("harness"):
            pass
        assert {name for name in self.harness.all_keys() if name != "rebuild"} == set()

    # -- fixtures -------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """By band. Without tenants that are parked."""
        found = []
        for band in range(3):
            tags = self.zset(f"turn:{POOL}:{band}")
            lines = {one: self.zset(f"models:{POOL}:{band}:{one}") for one in tags}
            waits = {one: {line[1:] for line in of_it} for one, of_it in lines.items()}
            broad = {one for one, of_it in lines.items() if len(of_it) > 2}
            found.append(Queue(f"{POOL}:{band}", tags, waits, broad))
        return found

    def blocked(self) -> set[str]:
        circuits = self.harness.leases.depth(POOL).circuits
        return {model for model, state in circuits.items() if state is CircuitState.OPEN}

    def half_open(self) -> set[str]:
        circuits = self.harness.leases.depth(POOL).circuits
        return {model for model, state in circuits.items() if state is CircuitState.HALF_OPEN}

    def zset(self, name: str) -> dict[str, float]:
        return dict(self.harness.client.zrange(self.harness.prefix + name, 0, -1, withscores=True))

    def hash(self, kind: str) -> dict[str, str]:
        return dict(self.harness.client.hgetall(f"{self.harness.prefix}{kind}:{POOL}"))
