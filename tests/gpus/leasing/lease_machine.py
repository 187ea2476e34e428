"""Everything that can be asked of leases, asked of the scripts and of the plain model alike.

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
from gpus.protocol import ExpiredLease, ExpiryVerdict, Lease, LeaseRef, ReleaseMode, Ticket

from .checks import SERVERS, TENANTS, Checks
from .operator_steps import HOSTS, MODELS, OperatorSteps
from .plain_model import PlainLeases
from .plain_values import Held, Slot
from .rig import POOL, Rig

WORKERS = ("w1", "w1", "w1", "w1", "w2")
SECONDS = (None, 0.0, 0.25, 1.0, 1.0, 3.5, 20.0)
SWEEP_SECONDS = 2.0
LATE_PRIORITY = (5, 9, 1)
"""By the level of the first one: tickets of one job share a mark if they are of one level."""
SEEDS = st.integers(0, 2**32)


class LeaseMachine(OperatorSteps, Checks, RuleBasedStateMachine):
    client: Client

    def __init__(self) -> None:
        super().__init__()
        self.virtual = [0.0, 0.0, 0.0]
        self.rig = Rig(self.client, f"m{uuid.uuid4().hex[:12]}", sweep_seconds=SWEEP_SECONDS).open()
        self.rig.told = set(TENANTS)
        self.model = PlainLeases()
        self.model.now = self.rig.now_ms * 1000
        self.chance = random.Random(0)
        self.number = 0
        self.seen: list[Lease] = []

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
            self.rule: 1,
        })  # fmt: skip

    @rule(seed=SEEDS, steps=st.integers(1, 15))
    def losses_and_repairs(self, seed: int, steps: int) -> None:
        self._run(seed, steps, {
            self.release: 3, self.claim: 4, self.take_over: 3, self.renew: 2, self.sweep: 5, self.settle: 1,
            self.shut: 1, self.prove_free: 3, self.wait: 1, self.push: 1,
        })  # fmt: skip

    @rule(seed=SEEDS, steps=st.integers(1, 10))
    def operators(self, seed: int, steps: int) -> None:
        self._run(seed, steps, {
            self.change: 2, self.forget: 1, self.rest: 2, self.switch: 3, self.rule: 3, self.fill: 2,
            self.pause: 2, self.release: 3, self.claim: 3,
        })  # fmt: skip
        for server in SERVERS:
            self.put_back(server)

    def _run(self, seed: int, steps: int, kinds: dict[Any, int]) -> None:
        self.chance = random.Random(seed)
        for kind in self.chance.choices(list(kinds), list(kinds.values()), k=steps):
            kind()

    def _new(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number:04}"

    # -- the line ----------------------------------------------------------------------------------------

    def push(self) -> None:
        ticket = {
            "model": self.chance.choice(MODELS),
            "tenant": self.chance.choice(TENANTS),
            "priority": self.chance.choice([1, 4, 5, 5, 5, 6, 8, 9]),
            "place": self.chance.choice([None, None, 0, 20]),
            "avoid": self.chance.choice([None, None, None, *SERVERS]),
        }
        self._push([self.rig.ticket(self._new("j"), **ticket) for _ in range(self.chance.randint(1, 4))])

    def push_again(self) -> None:
        if self.rig.tickets:
            self._push([self.rig.tickets[self.chance.choice(list(self.rig.tickets))]])

    def push_under_another_priority(self) -> None:
        """As somebody does who has not heard that it was changed."""
        if self.model.line:
            job = self.chance.choice(list(self.model.line))[0]
            ticket = self.rig.tickets[job]
            late = replace(ticket, priority=LATE_PRIORITY[(ticket.priority - 1) % 3])
            self.rig.tickets[f"{job} late"] = late
            self._push([late])

    def _push(self, tickets: list[Ticket]) -> None:
        pushed = self.rig.leases.push(POOL, tickets)
        outcomes = [result.outcome.value for result in pushed.results]
        expected = [self.model.push(ticket) for ticket in tickets]
        assert [one if one in ("held", "duplicate") else "stands" for one in outcomes] == expected
        parked = [ticket.tenant in self.model.parked_tenants() for ticket in tickets]
        assert all(out != "leased" for out, is_parked in zip(outcomes, parked, strict=True) if is_parked)
        stand = [one for one, is_parked in zip(expected, parked, strict=True) if not is_parked]
        assert sum(wake.count for wake in pushed.wakes) <= stand.count("stands")

    def remove(self) -> None:
        if self.rig.tickets:
            tickets = list(self.rig.tickets.values())
            standing = [one for one in tickets if (one.job_id, one.priority) in self.model.line]
            ticket = self.chance.choice([*standing, *tickets])
            expected = self.model.remove((ticket.job_id, ticket.priority))
            assert self.rig.leases.remove(POOL, ticket) == expected

    # -- leases ------------------------------------------------------------------------------------------

    def claim(self) -> None:
        attempt, worker, host = self._new("a"), self.chance.choice(WORKERS), self.chance.choice(HOSTS)
        for _ in range(self.chance.choice([1, 1, 2])):
            warm = self._warm()
            lease = self.rig.claim(attempt, worker=worker, host=host, warm=warm)
            self._same(lease, self.model.claim(attempt, worker, host or "", warm))

    def _warm(self) -> list[str] | None:
        """Mostly nobody says; some say nothing is, or what no server here runs."""
        count = self.chance.choice([None, None, 0, 1, 2])
        return None if count is None else self.chance.sample([*MODELS, "elsewhere"], count)

    def _same(self, lease: Lease | None, expected: tuple[Held, bool] | None) -> None:
        if lease is None or expected is None:
            assert (lease, expected) == (None, None)
            return
        held, adopted = expected
        assert (lease.job_id, lease.slot, lease.attempt_id, lease.epoch, lease.adopted) == (
            held.job, held.slot, held.attempt, held.epoch, adopted,
        )  # fmt: skip
        assert (lease.model, lease.tenant, lease.priority) == (held.model, held.tenant, held.priority)
        assert lease.estimate_seconds == pytest.approx(held.charged, rel=1e-12)
        self.seen.append(lease)

    def _pick(self) -> Lease | None:
        """A lease that was seen once: mostly one that is still held."""
        live = [lease for lease in self.seen[-30:] if self.model.under(*_ref(lease))]
        if live and self.chance.random() < 0.9:
            return self.chance.choice(live)
        return self.chance.choice(self.seen) if self.seen else None

    def release(self) -> None:
        lease = self._pick()
        if lease is None:
            return
        mode = self.chance.choice([ReleaseMode.SETTLE] * 6 + list(ReleaseMode))
        worker, seconds = self.chance.choice(WORKERS), self.chance.choice(SECONDS)
        rest = 3.0 if self.chance.random() < 0.05 else None
        hands_on = mode is ReleaseMode.SETTLE and self.chance.random() < 0.8
        following = self._new("a") if hands_on else None
        expected: Held | None = None
        warm = self._warm()
        if slot := self.model.under(*_ref(lease)):
            rest_us = None if rest is None else int(rest * 1_000_000)
            expected = self.model.release(slot, mode.value, worker, seconds, following, rest_us, warm)
        for _ in range(self.chance.choice([1, 1, 2])):
            found = self.rig.leases.release(
                lease.ref,
                mode,
                worker=worker,
                gpu_seconds=seconds,
                next_attempt_id=following,
                rest_seconds=rest,
                warm=warm,
            )
            warm = self._warm()  # of a repetition it does not count
            self._same(found, None if expected is None else (expected, False))

    def settle(self) -> None:
        ends = [attempt for attempt in self.model.settling if self.chance.random() < 0.7]
        refs = [_ref_of(self.model.settling[attempt]) for attempt in ends]
        for attempt in ends:
            self.model.settled(attempt)
        for _ in range(self.chance.choice([1, 2])):
            self.rig.leases.settled(refs)

    def take_over(self) -> None:
        lease, worker = self._pick(), self.chance.choice(WORKERS)
        slot = lease and self.model.under(*_ref(lease))
        if lease is None or slot is None:
            return
        expected = self.model.take_over(slot, worker, lease.epoch + 1)
        assert self.rig.leases.take_over(lease.ref, worker=worker, new_epoch=lease.epoch + 1) == expected
        if expected:
            self.seen.append(_as_lease(slot, lease))

    def renew(self) -> None:
        leases = list({lease.ref: lease for lease in self.seen[-20:] if self.chance.random() < 0.5}.values())
        worker, lost = self.chance.choice(WORKERS), []
        for lease in leases:
            slot, end = self.model.under(*_ref(lease)), self.model.settling.get(lease.attempt_id)
            held = slot.held if slot else end if end and _ref_of(end) == lease.ref else None
            if held is None or not self.model.renew(slot, held, worker):
                lost.append(lease.ref)
        assert self.rig.leases.renew(worker, leases, []) == lost

    # -- time and repair -----------------------------------------------------------------------------------

    def wait(self, seconds: float | None = None) -> None:
        self.rig.wait(seconds or self.chance.choice([0.001, 0.5, 1.0, 1.0, 4.0, 9.0, 40.0]))
        self.model.now = self.rig.now_ms * 1000

    def sweep(self) -> None:
        """As beat ticks; sometimes until something has run out, sometimes after a gap."""
        for _ in range(self.chance.choice([0, 0, 4])):
            self.wait(5.0)
            self._expired()
        for row in self._expired():
            if self.chance.random() < 0.7:
                self._resolve(row)

    def _expired(self) -> list[ExpiredLease]:
        rows = self.rig.leases.expired()
        assert sorted(row.ref.attempt_id for row in rows) == self.model.expired(
            int(SWEEP_SECONDS * 3_000_000)
        )
        return rows

    def _resolve(self, row: ExpiredLease) -> None:
        verdict = self.chance.choice(list(ExpiryVerdict))
        lease = self.model.settling.get(row.ref.attempt_id) or self.model.slots[row.ref.slot].held
        assert row.settling == (row.ref.attempt_id in self.model.settling)
        assert row.held_seconds == pytest.approx(
            lease.charged if row.settling else (self.model.now - lease.leased_us) / 1_000_000
        )
        assert self.rig.leases.resolve_expired(row.ref, verdict) == self.model.resolve(lease, verdict.value)

    def shut(self) -> None:
        name = self.chance.choice([*self.model.slots, "s3/7"])
        slot = self.model.slots.get(name)
        attempt = slot.lease.attempt if slot and slot.lease and self.chance.random() < 0.5 else "old"
        self.model.quarantine(name, attempt)
        self.rig.leases.quarantine(name, attempt)

    def prove_free(self) -> None:
        for slot in list(self.model.slots.values()):
            if slot.state == "quarantined":
                self.model.free_slot(slot.name)
                self.rig.leases.free_slot(slot.name)


def _ref(lease: Lease) -> tuple[str, str, str, int]:
    return lease.slot, lease.job_id, lease.attempt_id, lease.epoch


def _ref_of(held: Held) -> LeaseRef:
    return LeaseRef(held.slot, held.job, held.attempt, held.epoch)


def _as_lease(slot: Slot, before: Lease) -> Lease:
    held = slot.held
    return Lease(
        POOL, slot.name, held.job, held.attempt, held.epoch, held.model, held.tenant, held.priority,
        before.fence, before.leased_at_ms, held.charged,
    )  # fmt: skip
