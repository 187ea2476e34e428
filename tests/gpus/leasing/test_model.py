"""Whatever is asked in whatever order: the scripts answer like the plain model, and the index stays true."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from gpus.leasing.scripts import Client
from gpus.protocol import ExpiryVerdict, Lease, LeaseRef, ReleaseMode, split_slot

from .plain_model import Held, PlainLeases, Slot
from .rig import POOL, Rig

MODELS, TENANTS, HOSTS = ("flux", "ltx2", "zimg"), ("a", "b", "c"), ("", "", "box")
SERVERS = ("s1", "s2", "s3")
SWEEP_SECONDS = 2.0

WAIT = st.sampled_from([0.001, 0.5, 1.0, 4.0, 9.0, 40.0])
SECONDS = st.sampled_from([None, 0.0, 0.25, 1.0, 3.5, 20.0])
WORKERS = st.sampled_from(["w1", "w1", "w1", "w2"])


READ_VIRTUAL = """
local pool = {cmsgpack.unpack(redis.call('GET', KEYS[1]))}
return {tostring(pool[5]), tostring(pool[8]), tostring(pool[11])}
"""


class LeaseMachine(RuleBasedStateMachine):
    client: Client

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(self.client, f"m{uuid.uuid4().hex[:12]}", sweep_seconds=SWEEP_SECONDS).open()
        self.model = PlainLeases()
        self.number = 0
        self.virtual = [0.0, 0.0, 0.0]
        self.seen: list[Lease] = []
        self._sync()

    def _sync(self) -> None:
        self.model.now = self.rig.now_ms * 1000

    def _new(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number:04}"

    @initialize()
    def begin(self) -> None:
        self.configure("s1", 2, MODELS, True, "")
        self.configure("s2", 1, MODELS[:2], True, "")

    # -- the line --------------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 6), model=st.sampled_from(MODELS), tenant=st.sampled_from(TENANTS),
        priority=st.integers(1, 9), place=st.sampled_from([None, None, 0, 20]),
        avoid=st.sampled_from([None, None, None, "s1", "s2"]),
    )  # fmt: skip
    def push(self, count: int, **ticket: Any) -> None:
        tickets = [self.rig.ticket(self._new("j"), **ticket) for _ in range(count)]
        self._push(tickets)

    @rule(data=st.data())
    def push_again(self, data: st.DataObject) -> None:
        if self.rig.tickets:
            job = data.draw(st.sampled_from(sorted(self.rig.tickets)))
            self._push([self.rig.tickets[job]])

    def _push(self, tickets: list[Any]) -> None:
        pushed = self.rig.leases.push(POOL, tickets)
        outcomes = [result.outcome.value for result in pushed.results]
        expected = [self.model.push(ticket) for ticket in tickets]
        assert [o if o in ("held", "duplicate") else "stands" for o in outcomes] == expected
        assert sum(wake.count for wake in pushed.wakes) <= expected.count("stands")

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.rig.tickets:
            job = data.draw(st.sampled_from(sorted(self.rig.tickets)))
            assert self.rig.leases.remove(POOL, self.rig.tickets[job]) == self.model.remove(job)

    # -- leases ------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        """What workers do all day, several steps of it."""
        for _ in range(data.draw(st.integers(4, 12))):
            step = data.draw(
                st.sampled_from(["claim", "claim", "next", "next", "next", "end", "commit", "wait"])
            )
            if step == "claim":
                self.claim("w1", data.draw(st.sampled_from(HOSTS)), twice=False)
            elif step in ("next", "end"):
                mode = data.draw(st.sampled_from([ReleaseMode.SETTLE] * 3 + [ReleaseMode.FREE]))
                self.release(data, mode, "w1", data.draw(SECONDS), step == "next", None, twice=False)
            elif step == "commit":
                self.settled(data, twice=False)
            else:
                self.wait(data.draw(st.sampled_from([0.001, 1.0, 7.0])))

    @rule(worker=WORKERS, host=st.sampled_from(HOSTS), twice=st.booleans())
    def claim(self, worker: str, host: str, twice: bool) -> None:
        attempt = self._new("a")
        for _ in range(1 + twice):
            lease = self.rig.claim(attempt, worker=worker, host=host or None)
            self._same(lease, self.model.claim(attempt, worker, host))
            if lease is None:
                return  # a second look may find what the first one skipped

    def _same(self, lease: Lease | None, expected: tuple[Held, bool] | None) -> None:
        if lease is None or expected is None:
            assert lease is None
            assert expected is None
            return
        held, adopted = expected
        assert (lease.job_id, lease.slot, lease.attempt_id, lease.epoch, lease.adopted) == (
            held.job, held.slot, held.attempt, held.epoch, adopted,
        )  # fmt: skip
        assert (lease.model, lease.tenant, lease.priority) == (held.model, held.tenant, held.priority)
        assert lease.estimate_seconds == pytest.approx(held.charged, rel=1e-12)
        self.seen.append(lease)

    def _pick(self, data: st.DataObject) -> Lease | None:
        """A lease that was seen once: mostly one that is still held."""
        live = [lease for lease in self.seen if self.model.under(*_ref(lease))]
        if live and data.draw(st.integers(0, 9)):
            return data.draw(st.sampled_from(live))
        return data.draw(st.sampled_from(self.seen)) if self.seen else None

    @rule(
        data=st.data(), mode=st.sampled_from(ReleaseMode), worker=WORKERS, seconds=SECONDS,
        hand_on=st.booleans(), rest=st.sampled_from([None, None, None, 3.0]), twice=st.booleans(),
    )  # fmt: skip
    def release(  # noqa: PLR0917
        self, data: st.DataObject, mode: ReleaseMode, worker: str, seconds: float | None, hand_on: bool,
        rest: float | None, twice: bool,
    ) -> None:  # fmt: skip
        lease = self._pick(data)
        if lease is None:
            return
        following = self._new("a") if hand_on and mode is ReleaseMode.SETTLE else None
        expected: Held | None = None
        if slot := self.model.under(*_ref(lease)):
            rest_us = None if rest is None else int(rest * 1_000_000)
            expected = self.model.release(slot, mode.value, worker, seconds, following, rest_us)
        for _ in range(1 + twice):
            found = self.rig.leases.release(
                lease.ref,
                mode,
                worker=worker,
                gpu_seconds=seconds,
                next_attempt_id=following,
                rest_seconds=rest,
            )
            self._same(found, None if expected is None else (expected, False))

    @rule(data=st.data(), twice=st.booleans())
    def settled(self, data: st.DataObject, twice: bool) -> None:
        if not self.model.settling:
            return
        ends = data.draw(st.lists(st.sampled_from(sorted(self.model.settling)), min_size=1, unique=True))
        refs = [_ref_of(self.model.settling[attempt]) for attempt in ends]
        for attempt in ends:
            self.model.settled(attempt)
        for _ in range(1 + twice):
            self.rig.leases.settled(refs)

    @rule(data=st.data(), worker=WORKERS)
    def take_over(self, data: st.DataObject, worker: str) -> None:
        lease = self._pick(data)
        if lease is None:
            return
        slot = self.model.under(*_ref(lease))
        expected = slot is not None and self.model.take_over(slot, worker, lease.epoch + 1)
        taken = self.rig.leases.take_over(lease.ref, worker=worker, new_epoch=lease.epoch + 1)
        if slot is not None:
            assert taken == expected
        if expected and slot is not None:
            self.seen.append(_as_lease(slot, lease))

    @rule(data=st.data(), worker=WORKERS)
    def renew(self, data: st.DataObject, worker: str) -> None:
        if not self.seen:
            return
        leases = data.draw(st.lists(st.sampled_from(self.seen), min_size=1, unique_by=lambda one: one.ref))
        expected = []
        for lease in leases:
            slot = self.model.under(*_ref(lease))
            end = self.model.settling.get(lease.attempt_id)
            held = slot.held if slot else end
            same = held is not None and (held.job, held.epoch, held.slot) == (
                lease.job_id, lease.epoch, lease.slot,
            )  # fmt: skip
            if not (held and same and self.model.renew(slot, held, worker)):
                expected.append(lease.ref)
        assert self.rig.leases.renew(worker, leases, []) == expected

    # -- time and repair -----------------------------------------------------------------------------------

    @rule(seconds=WAIT)
    def wait(self, seconds: float) -> None:
        self.rig.wait(seconds)
        self._sync()

    @rule(data=st.data(), verdict=st.sampled_from(ExpiryVerdict), quietly=st.booleans())
    def sweep(self, data: st.DataObject, verdict: ExpiryVerdict, quietly: bool) -> None:
        """As a sweep that ticks; quietly: in small steps before it looks, so that there is no gap."""
        if quietly:
            for _ in range(4):
                self.wait(5.0)
                self._expired()
        rows = self._expired()
        if not rows:
            return
        row = data.draw(st.sampled_from(rows))
        lease = self.model.settling.get(row.ref.attempt_id) or self.model.slots[row.ref.slot].held
        expected = self.model.resolve(lease, verdict.value)
        assert self.rig.leases.resolve_expired(row.ref, verdict) == expected

    def _expired(self) -> list[Any]:
        rows = self.rig.leases.expired()
        assert sorted(row.ref.attempt_id for row in rows) == self.model.expired(
            int(SWEEP_SECONDS * 3_000_000)
        )
        return rows

    @rule(data=st.data(), name=st.sampled_from(["s1/0", "s2/0", "s3/1"]), shut=st.booleans())
    def quarantine(self, data: st.DataObject, name: str, shut: bool) -> None:
        """And, more often, its end."""
        slot = self.model.slots.get(name)
        if shut:
            attempts = ["old"] if slot is None or slot.lease is None else ["old", slot.lease.attempt]
            attempt = data.draw(st.sampled_from(attempts))
            self.model.quarantine(name, attempt)
            self.rig.leases.quarantine(name, attempt)
            return
        for found in list(self.model.slots.values()):
            if found.state == "quarantined":
                self.model.free_slot(found.name)
                self.rig.leases.free_slot(found.name)

    # -- the registry ----------------------------------------------------------------------------------------

    @rule(data=st.data())
    def operate(self, data: st.DataObject) -> None:
        """Mostly harmless: what is switched off is switched on again."""
        name = data.draw(st.sampled_from(SERVERS))
        kind = data.draw(
            st.sampled_from(["change", "restore", "restore", "switch", "switch", "weigh", "rest", "forget"])
        )
        if kind == "change":
            self.configure(
                name,
                data.draw(st.integers(0, 3)),
                data.draw(st.sampled_from([MODELS, MODELS[:2], MODELS[2:]])),
                data.draw(st.booleans()),
                data.draw(st.sampled_from(HOSTS)),
            )
        elif kind == "restore":
            self.configure(
                name, 3, MODELS if name == "s1" else MODELS[:2], True, "box" if name == "s3" else ""
            )
        elif kind == "switch":
            self.switch(data.draw(st.booleans()), data.draw(st.sampled_from([0.0, 5.0, 30.0])))
        elif kind == "weigh":
            self.weigh(data.draw(st.sampled_from(TENANTS)), data.draw(st.sampled_from([0.5, 1.0, 4.0])))
        elif kind == "rest" and name in self.model.servers:
            self.model.rest(name, 3_000_000)
            self.rig.leases.rest_server(name, 3.0)
        elif kind == "forget":
            self.model.forget(name)
            self.rig.leases.forget_server(name)

    def configure(self, name: str, slots: int, models: tuple[str, ...], on: bool, host: str) -> None:
        self.model.configure(name, slots, models, on, host)
        self.rig.server(name, slots, models, desired="on" if on else "off", host=host or None)

    def switch(self, fifo: bool, patience: float) -> None:
        self.model.fifo, self.model.patience = fifo, int(patience * 1_000_000)
        self.rig.pool("fifo" if fifo else "fair", patience=patience)

    def weigh(self, tenant: str, weight: float) -> None:
        self.model.weights[tenant] = weight
        self.rig.leases.set_weights({tenant: weight})

    @rule()
    def fill(self) -> None:
        wakes = self.rig.leases.fill()
        self.model.end_rests()
        woken = {wake.host or "" for wake in wakes}
        free = [slot for slot in self.model.slots.values() if slot.listed]
        useful = {
            self.model.servers[split_slot(slot.name)[0]].host
            for slot in free
            if slot.state == "adoptable" or self.model.best(self.model._server(slot).models)
        }
        assert woken == useful

    # -- after every step

    @invariant()
    def slots_are_what_they_should_be(self) -> None:
        seen = {
            view.slot: (view.state, view.job_id, view.attempt_id, view.warm_model)
            for server in SERVERS
            for view in self.rig.leases.slots(server)
        }
        assert seen == {
            slot.name: (
                slot.state,
                slot.lease.job if slot.lease else None,
                slot.lease.attempt if slot.lease else None,
                slot.warm,
            )
            for slot in self.model.slots.values()
        }
        assert self.rig.leases.depth(POOL).slots.items() <= self.model.states().items() or _uncounted(
            self.model
        )
        holders = [
            slot.held.job for slot in self.model.slots.values() if slot.state in ("leased", "adoptable")
        ]
        assert len(holders) == len(set(holders))

    @invariant()
    def indexes_tell_the_truth(self) -> None:
        found = _Index(self.rig)
        line = sorted(self.model.line.values(), key=lambda waiting: waiting.job)
        assert self.rig.leases.depth(POOL).waiting == self.model.waiting()
        assert found.tickets == {(str(w.band), w.model, w.tenant, w.member): float(w.score) for w in line}
        turn: dict[str, dict[str, float]] = defaultdict(dict)
        heads: dict[str, dict[str, float]] = defaultdict(dict)
        for waiting in line:
            tag = self.model.bands[waiting.band].turn[waiting.tenant]
            for queue in (f"{waiting.band}", f"{waiting.band}:{waiting.model}"):
                turn[queue][waiting.tenant] = tag
                before = heads[queue].get(waiting.tenant, float("inf"))
                heads[queue][waiting.tenant] = min(before, float(waiting.score))
        assert found.of("turn") == dict(turn)
        assert found.of("heads") == dict(heads)
        listed = {slot.name for slot in self.model.slots.values() if slot.listed}
        assert {slot for slots in found.of("free").values() for slot in slots} == listed
        assert sum(count for hosts in found.of("open").values() for count in hosts.values()) == len(listed)
        assert found.set_of("held") == set(self.model.holders)

    @invariant()
    def virtual_time_never_goes_back(self) -> None:
        before, self.virtual = self.virtual, [band.virtual for band in self.model.bands]
        assert all(old <= new for old, new in zip(before, self.virtual, strict=True))
        stored = self.rig.client.eval(READ_VIRTUAL, 1, f"{self.rig.prefix}pool:{POOL}")
        assert [float(value) for value in stored] == pytest.approx(self.virtual, rel=1e-12)


class _Index:
    """The zsets of a fleet, as they lie in Redis."""

    def __init__(self, rig: Rig) -> None:
        names = sorted(rig.all_keys())
        self._rig = rig
        zsets = [name for name in names if name.split(":")[0] in ("line", "turn", "heads", "free", "open")]
        pipeline = rig.client.pipeline(transaction=False)
        for name in zsets:
            pipeline.zrange(rig.prefix + name, 0, -1, withscores=True)
        self._zsets = dict(zip(zsets, map(dict, pipeline.execute()), strict=True))

    @property
    def tickets(self) -> dict[tuple[str, str, str, str], float]:
        return {
            (*_parts(name), member): score
            for name, zset in self._zsets.items()
            if name.startswith("line:")
            for member, score in zset.items()
        }

    def of(self, kind: str) -> dict[str, dict[str, float]]:
        """By what stands behind the pool in the name."""
        return {
            name.split(":", 2)[2]: zset
            for name, zset in self._zsets.items()
            if name.startswith(f"{kind}:{POOL}:")
        }

    def set_of(self, name: str) -> set[str]:
        return set(self._rig.client.hkeys(self._rig.prefix + name))


def _parts(name: str) -> tuple[str, str, str]:
    _, _, band, model, tenant = name.split(":")
    return band, model, tenant


def _uncounted(model: PlainLeases) -> bool:
    """A slot of a server that was never configured is counted nowhere that a pool shows."""
    return any(server.gone for server in model.servers.values())


def _ref(lease: Lease) -> tuple[str, str, str, int]:
    return lease.slot, lease.job_id, lease.attempt_id, lease.epoch


def _ref_of(held: Held) -> LeaseRef:
    return LeaseRef(held.slot, held.job, held.attempt, held.epoch)


def _as_lease(slot: Slot, before: Lease) -> Lease:
    return Lease(
        POOL, slot.name, slot.held.job, slot.held.attempt, slot.held.epoch, slot.held.model, slot.held.tenant,
        slot.held.priority, before.fence, before.leased_at_ms, slot.held.charged,
    )  # fmt: skip


def test_the_scripts_answer_like_the_plain_model(client: Client) -> None:
    machine = type("Machine", (LeaseMachine,), {"client": client})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
