"""A state machine that makes every call of the lease layer on the scripts and on the plain model.

Hypothesis chooses the phases and how long they last, and shortens a failing sequence; inside a phase the
steps come from a seed, so that many of them fit into one example.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gpus.leasing.scripts import Client
from gpus.leasing.values import ExpiredLease, Follower
from gpus.protocol import ExpiryVerdict, Ticket
from tests.gpus.leasing.checks import SERVERS, TENANTS, Checks
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.lease_steps import LeaseSteps
from tests.gpus.leasing.operator_steps import MODELS, OperatorSteps
from tests.gpus.leasing.plain_model import PlainLeases

SWEEP_SECONDS = 2.0
LATE_PRIORITY = (5, 9, 1)
"""By the level of the first one: tickets of one job share a mark if they are of one level."""
SEEDS = st.integers(0, 2**32)


class LeaseMachine(LeaseSteps, OperatorSteps, Checks, RuleBasedStateMachine):
    client: Client

    def __init__(self) -> None:
        super().__init__()
        self.virtual = [0.0, 0.0, 0.0]
        self.harness = LeaseHarness(
            self.client, f"m{uuid.uuid4().hex[:12]}", sweep_seconds=SWEEP_SECONDS
        ).open()
        self.harness.configured_tenants = set(TENANTS)
        self.model = PlainLeases()
        self.model.now = self.model.reached = self.harness.now_ms * 1000
        self.chance = random.Random(0)
        self.number = 0
        self.seen, self.lost = [], []

    @initialize()
    def begin(self) -> None:
        for server in SERVERS:
            self.put_back(server)

    # -- phases ----------------------------------------------------------------------------------------

    @rule(seed=SEEDS, steps=st.integers(1, 40))
    def workers_and_clients(self, seed: int, steps: int) -> None:
        self._run(seed, steps, {
            self.push: 4, self.claim: 4, self.release: 8, self.settle: 3, self.wait: 2, self.remove: 1,
            self.renew: 1, self.push_again: 1, self.push_under_another_priority: 1, self.pause: 1,
            self.rule: 1, self.reserve: 6, self.give_back_follower: 1,
        })  # fmt: skip

    @rule(seed=SEEDS, steps=st.integers(1, 15))
    def losses_and_repairs(self, seed: int, steps: int) -> None:
        self._run(seed, steps, {
            self.release: 3, self.claim: 4, self.take_over: 3, self.renew: 2, self.sweep: 5, self.settle: 1,
            self.shut: 1, self.prove_free: 3, self.wait: 1, self.push: 1, self.reserve: 4,
            self.give_back_follower: 1,
        })  # fmt: skip

    @rule(seed=SEEDS, steps=st.integers(1, 10))
    def operators(self, seed: int, steps: int) -> None:
        self._run(seed, steps, {
            self.change: 2, self.forget: 1, self.rest: 2, self.switch: 3, self.rule: 3, self.fill: 2,
            self.pause: 2, self.release: 3, self.claim: 3, self.reserve: 8,
        })  # fmt: skip
        for server in SERVERS:
            self.put_back(server)

    def _run(self, seed: int, steps: int, kinds: dict[Any, int]) -> None:
        self.chance = random.Random(seed)
        for kind in self.chance.choices(list(kinds), list(kinds.values()), k=steps):
            kind()
            if self.chance.random() < 0.7:
                self.push_dropped()
        self.push_dropped()

    # -- the line ----------------------------------------------------------------------------------------

    def push(self) -> None:
        ticket = {
            "model": self.chance.choice(MODELS),
            "tenant": self.chance.choice(TENANTS),
            "priority": self.chance.choice([1, 4, 5, 5, 5, 6, 8, 9]),
            "place": self.chance.choice([None, None, 0, 20]),
            "avoid": self.chance.choice([None, None, None, *SERVERS]),
            "near": self.chance.choice([None, None, None, *SERVERS]),
        }
        self._push([self.harness.ticket(self._new("j"), **ticket) for _ in range(self.chance.randint(1, 4))])

    def push_again(self) -> None:
        if self.harness.tickets:
            self._push([self.harness.tickets[self.chance.choice(list(self.harness.tickets))]])

    def push_under_another_priority(self) -> None:
        """As a process that does not know of the change."""
        if self.model.line:
            job = self.chance.choice(list(self.model.line))[0]
            ticket = self.harness.tickets[job]
            late = replace(ticket, priority=LATE_PRIORITY[(ticket.priority - 1) % 3])
            self.harness.tickets[f"{job} late"] = late
            self._push([late])

    def push_dropped(self) -> None:
        """Jobs of dropped followers: the process that drops a follower pushes its job, sometimes a little
        later."""
        if self.model.dropped:
            self._push([self.harness.tickets[one.job] for one in self.model.dropped])
            self.lost += self.model.dropped
            self.model.dropped.clear()

    def _push(self, tickets: list[Ticket]) -> None:
        pushed = self.harness.leases.push(POOL, tickets)
        outcomes = [result.outcome.value for result in pushed.results]
        expected = [self.model.push(ticket) for ticket in tickets]
        assert [one if one in ("held", "duplicate") else "stands" for one in outcomes] == expected
        parked = [ticket.tenant in self.model.parked_tenants() for ticket in tickets]
        assert all(out != "leased" for out, is_parked in zip(outcomes, parked, strict=True) if is_parked)
        stand = [one for one, is_parked in zip(expected, parked, strict=True) if not is_parked]
        assert sum(wake.count for wake in pushed.wakes) <= stand.count("stands")

    def remove(self) -> None:
        if self.harness.tickets:
            tickets = list(self.harness.tickets.values())
            standing = [one for one in tickets if (one.job_id, one.priority) in self.model.line]
            ticket = self.chance.choice([*standing, *tickets])
            expected = self.model.remove((ticket.job_id, ticket.priority))
            assert self.harness.leases.remove(POOL, ticket) == expected

    # -- time and repair -----------------------------------------------------------------------------------

    def wait(self, seconds: float | None = None) -> None:
        self.harness.wait(seconds or self.chance.choice([0.001, 0.5, 1.0, 1.0, 4.0, 9.0, 40.0]))
        self.model.now = self.harness.now_ms * 1000

    def sweep(self) -> None:
        """As beat ticks; sometimes until something has run out, sometimes after a gap."""
        for _ in range(self.chance.choice([0, 0, 4])):
            self.wait(5.0)
            self._expired()
        for row in self._expired():
            if self.chance.random() < 0.7:
                self._resolve(row)

    def _expired(self) -> list[ExpiredLease]:
        rows = self.harness.leases.expired()
        assert sorted(row.ref.attempt_id for row in rows) == self.model.expired(
            int(SWEEP_SECONDS * 3_000_000)
        )
        return rows

    def _resolve(self, row: ExpiredLease) -> None:
        verdicts = list(ExpiryVerdict)
        if row.follower and self.chance.random() < 0.5:
            verdicts = [ExpiryVerdict.FOLLOWED]
        verdict = self.chance.choice(verdicts)
        end, slot = self.model.settling.get(row.ref.attempt_id), self.model.slots.get(row.ref.slot)
        lease, follower = (end, None) if end or slot is None else (slot.held, slot.follower)
        assert lease is not None
        assert row.follower == (follower and Follower(follower.job, follower.attempt, follower.model))
        assert row.is_ending == (row.ref.attempt_id in self.model.settling)
        assert row.held_seconds == pytest.approx(
            lease.charged if row.is_ending else (self.model.now - lease.leased_us) / 1_000_000
        )
        assert self.harness.leases.resolve_expired(row.ref, verdict) == self.model.resolve(
            lease, verdict.value
        )

    def shut(self) -> None:
        name = self.chance.choice([*self.model.slots, "s3/7"])
        slot = self.model.slots.get(name)
        attempt = slot.lease.attempt if slot and slot.lease and self.chance.random() < 0.5 else "old"
        self.model.quarantine(name, attempt)
        self.harness.leases.quarantine(name, attempt)

    def prove_free(self) -> None:
        for slot in list(self.model.slots.values()):
            if slot.state == "quarantined":
                self.model.free_slot(slot.name)
                self.harness.leases.free_slot(slot.name)
