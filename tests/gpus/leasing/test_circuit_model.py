"""Circuits match a plain model for any order of ends, and there is never more than one trial."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from gpus.errors import Verdict
from gpus.leasing.scripts import Client
from gpus.leasing.values import CircuitRules
from gpus.protocol import CircuitState, Lease
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness

RULES = CircuitRules(failures=3, rest_seconds=8.0, cap_seconds=60.0)
SERVERS = {"s1": 3, "s2": 2, "s3": 1}
MODELS = ("flux", "sdxl", "llm")
VERDICTS = [Verdict.WELL, *Verdict, Verdict.EITHER, Verdict.EITHER]
BLAMES_SERVER = (Verdict.SERVER, Verdict.EITHER)
BLAMES_MODEL = (Verdict.MODEL, Verdict.EITHER)


@dataclass
class Plain:
    """One circuit. probe: the attempt that tries, or tried last."""

    strikes: int = 0
    failed_job: str = ""
    servers: set[str] = field(default_factory=set)
    opens: int = 0
    until: float = 0.0
    probe: str = ""

    def state(self, now: float) -> CircuitState:
        if not self.opens:
            return CircuitState.CLOSED
        return CircuitState.OPEN if now < self.until else CircuitState.HALF_OPEN

    def open(self, now: float) -> None:
        self.opens += 1
        self.strikes, self.failed_job, self.probe = 0, "", ""
        self.until = now + min(RULES.rest_seconds * 2.0 ** (self.opens - 1), RULES.cap_seconds)

    def close(self) -> None:
        self.__init__()  # type: ignore[misc]


class CircuitModel:
    def __init__(self, harness: LeaseHarness, seed: int) -> None:
        self.harness, self.chance = harness, random.Random(seed)
        self.servers = {name: Plain() for name in SERVERS}
        self.models = {name: Plain() for name in MODELS}
        self.live: dict[str, Lease] = {}
        self.number = 0
        for name, slots in SERVERS.items():
            harness.server(name, slots, MODELS)

    @property
    def now(self) -> float:
        return self.harness.now_ms / 1000

    def step(self) -> None:
        act = self.chance.choices((self.push, self.claim, self.end, self.wait), (3, 5, 5, 2))[0]
        act()
        self.compare()

    def push(self) -> None:
        self.number += 1
        self.harness.push(f"j{self.number:05d}", model=self.chance.choice(MODELS))

    def wait(self) -> None:
        self.harness.wait(self.chance.choice((0.5, 3.0, 9.0)))

    def claim(self) -> None:
        self.number += 1
        lease = self.harness.claim(f"a{self.number}")
        if lease is None:
            self.must_be_nothing()
            return
        self.take(lease)

    def take(self, lease: Lease) -> None:
        for circuit in (self.servers[lease.server], self.models[lease.model]):
            assert circuit.state(self.now) is not CircuitState.OPEN, lease
            if circuit.opens:
                assert circuit.probe not in self.live, f"{lease} and {self.live[circuit.probe]} both try"
                circuit.probe = lease.attempt_id
        self.live[lease.attempt_id] = lease

    def must_be_nothing(self) -> None:
        """Every job that may run does, at the latest after the next check of half-open servers."""
        self.harness.wait(2.1)
        lease = self.harness.claim(f"b{self.number}")
        if lease is not None:
            self.harness.release(lease, "free", gpu_seconds=0.0)
            self.harness.push(lease.job_id, model=lease.model)
            return
        waiting = self.harness.leases.depth(POOL).waiting
        models = [name for name in waiting if self._may(self.models[name])]
        free = [
            name
            for name, slots in SERVERS.items()
            if self._may(self.servers[name]) and sum(one.server == name for one in self.live.values()) < slots
        ]
        assert not (models and free), (models, free)

    def _may(self, circuit: Plain) -> bool:
        state = circuit.state(self.now)
        return state is CircuitState.CLOSED or (
            state is CircuitState.HALF_OPEN and circuit.probe not in self.live
        )

    def end(self) -> None:
        if not self.live:
            return
        lease = self.live.pop(self.chance.choice(sorted(self.live)))
        verdict = self.chance.choice(VERDICTS)
        self.number += 1
        following = self.harness.release(
            lease,
            gpu_seconds=1.0,
            verdict=verdict,
            next_attempt_id=f"n{self.number}" if self.chance.random() < 0.5 else None,
        )
        self.harness.leases.confirm_ends([lease.ref])
        if not self.model_judged(lease, verdict) or verdict is Verdict.MODEL:
            self.judge_server(lease, verdict)
        if following is not None:
            self.take(following)

    def model_judged(self, lease: Lease, verdict: Verdict) -> bool:
        circuit, is_blamed = self.models[lease.model], verdict in BLAMES_MODEL
        if circuit.opens:
            if circuit.probe == lease.attempt_id:
                if verdict is Verdict.WELL:
                    circuit.close()
                elif is_blamed:
                    circuit.open(self.now)
            return is_blamed
        if verdict is Verdict.WELL:
            circuit.close()
        if not is_blamed or circuit.failed_job == lease.job_id:
            return False
        circuit.strikes, circuit.failed_job = circuit.strikes + 1, lease.job_id
        circuit.servers.add(lease.server)
        if circuit.strikes < RULES.failures or len(circuit.servers) < 2:
            return False
        for name in circuit.servers:
            if self.servers[name].opens <= 1:
                self.servers[name].close()
        circuit.open(self.now)
        return True

    def judge_server(self, lease: Lease, verdict: Verdict) -> None:
        circuit = self.servers[lease.server]
        if circuit.opens:
            if circuit.probe == lease.attempt_id:
                if verdict in (Verdict.WELL, Verdict.ANSWERED, Verdict.MODEL):
                    circuit.close()
                elif verdict in BLAMES_SERVER:
                    circuit.open(self.now)
        elif verdict is Verdict.WELL:
            circuit.close()
        elif verdict is Verdict.SERVER or (verdict is Verdict.EITHER and circuit.failed_job != lease.job_id):
            circuit.strikes, circuit.failed_job = circuit.strikes + 1, lease.job_id
            if circuit.strikes >= RULES.failures:
                circuit.open(self.now)

    def compare(self) -> None:
        found = self.harness.leases.circuits(POOL, list(SERVERS))
        for kind, plain in ((found.servers, self.servers), (found.models, self.models)):
            for name, circuit in plain.items():
                seen = kind.get(name)
                seen_as = (seen.state, seen.strikes, seen.opens) if seen else (CircuitState.CLOSED, 0, 0)
                state = circuit.state(self.now)
                if kind is found.models and circuit.probe in self.live:
                    state = CircuitState.HALF_OPEN
                assert seen_as == (state, circuit.strikes, circuit.opens), name


@pytest.mark.parametrize("seed", range(8))
def test_circuits_match_the_plain_model(client: Client, fleet: str, seed: int) -> None:
    model = CircuitModel(LeaseHarness(client, fleet, circuit_rules=RULES).open(), seed)
    for _ in range(400):
        model.step()
    assert any(circuit.opens for circuit in (*model.servers.values(), *model.models.values())) or seed
