"""The calls of workers, made on the scripts and on the plain model."""

from __future__ import annotations

import random

import pytest

from gpus.protocol import Lease, LeaseRef, ReleaseMode
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.operator_steps import HOSTS, MODELS
from tests.gpus.leasing.plain_model import PlainLeases
from tests.gpus.leasing.plain_values import Held, Slot

WORKERS = ("w1", "w1", "w1", "w1", "w2")
SECONDS = (None, 0.0, 0.25, 1.0, 1.0, 3.5, 20.0)


class LeaseSteps:
    """seen: every lease that was granted, the last one last. lost: followers that were dropped."""

    harness: LeaseHarness
    model: PlainLeases
    chance: random.Random
    number: int
    seen: list[Lease]
    lost: list[Held]

    def _new(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number:04}"

    def _warm(self) -> list[str] | None:
        """Usually None; sometimes no model, or a model that no server runs."""
        count = self.chance.choice([None, None, 0, 1, 2])
        return None if count is None else self.chance.sample([*MODELS, "elsewhere"], count)

    def _same(self, lease: Lease | None, expected: Held | None, *, adopted: bool = False) -> None:
        if lease is None or expected is None:
            assert (lease, expected) == (None, None)
            return
        held, slot = expected, self.model.slots[expected.slot]
        assert (lease.job_id, lease.slot, lease.attempt_id, lease.epoch, lease.adopted) == (
            held.job, held.slot, held.attempt, held.epoch, adopted,
        )  # fmt: skip
        assert (lease.model, lease.tenant, lease.priority) == (held.model, held.tenant, held.priority)
        assert lease.fence == (slot.fence if slot.lease is held else held.fence)
        assert lease.estimate_seconds == pytest.approx(held.charged, rel=1e-12)
        self.seen.append(lease)

    def _pick(self) -> Lease | None:
        """A lease that was seen once, no follower now: mostly one that still holds its slot."""
        live = [lease for lease in self.seen[-30:] if self.model.under(*_ref(lease))]
        if live and self.chance.random() < 0.9:
            return self.chance.choice(live)
        seen = [lease for lease in self.seen if not self.model.followed_under(*_ref(lease))]
        return self.chance.choice(seen) if seen else None

    # -- leases begin and end ----------------------------------------------------------------------------

    def claim(self) -> None:
        attempt, worker, host = self._new("a"), self.chance.choice(WORKERS), self.chance.choice(HOSTS)
        for _ in range(self.chance.choice([1, 1, 2])):
            warm = self._warm()
            lease = self.harness.claim(attempt, worker=worker, host=host, warm=warm)
            held, adopted = self.model.claim(attempt, worker, host or "", warm) or (None, False)
            self._same(lease, held, adopted=adopted)

    def release(self) -> None:
        lease = self._pick()
        if lease is None:
            return
        slot = self.model.under(*_ref(lease))
        follower = slot.follower if slot else None
        mode = self.chance.choice([ReleaseMode.ENDED] * 6 + list(ReleaseMode))
        worker, seconds = self.chance.choice(WORKERS), self.chance.choice(SECONDS)
        rest = 3.0 if self.chance.random() < 0.05 else None
        hands_on = mode is ReleaseMode.ENDED and self.chance.random() < 0.8
        begun = self._begun(slot) if slot and mode is ReleaseMode.ENDED else None
        following = self._new("a") if hands_on else None
        is_known = slot is not None and slot.held.worker == worker  # to no other worker
        if hands_on and follower and not begun and is_known and self.chance.random() < 0.7:
            following = follower.attempt
        begun_lease = _as_lease(begun, begun.fence) if begun else None
        expected: Held | None = None
        warm = self._warm()
        if slot:
            rest_us = None if rest is None else int(rest * 1_000_000)
            expected = self.model.release(slot, mode.value, worker, seconds, following, rest_us, warm, begun)
        for _ in range(self.chance.choice([1, 1, 2])):
            found = self.harness.leases.release(
                lease.ref,
                mode,
                worker=worker,
                gpu_seconds=seconds,
                next_attempt_id=following,
                rest_seconds=rest,
                warm=warm,
                begun=begun_lease,
            )
            warm = self._warm()  # of a repetition it does not count
            self._same(found, expected)

    def _begun(self, slot: Slot) -> Held | None:
        """The job that runs there already: the follower, or one from before a rebuild."""
        if slot.follower and self.chance.random() < 0.5:
            return slot.follower
        lost = [one for one in self.lost if one.slot == slot.name and one.job not in self.model.holders]
        if not lost or self.chance.random() < 0.6:
            return None
        begun = lost[-1]
        self.lost.remove(begun)
        was_given_on = any(one.attempt_id == begun.attempt and one.job_id != begun.job for one in self.seen)
        return None if was_given_on else begun

    def settle(self) -> None:
        ends = [attempt for attempt in self.model.settling if self.chance.random() < 0.7]
        refs = [_ref_of(self.model.settling[attempt]) for attempt in ends]
        for attempt in ends:
            self.model.confirm_ends(attempt)
        for _ in range(self.chance.choice([1, 2])):
            self.harness.leases.confirm_ends(refs)

    # -- followers ---------------------------------------------------------------------------------------

    def reserve(self) -> None:
        lease, worker, attempt = self._pick(), self.chance.choice(WORKERS), self._new("a")
        if lease is None:
            return
        slot = self.model.under(*_ref(lease))
        if slot and self.chance.random() < 0.7:
            worker = slot.held.worker
        for _ in range(self.chance.choice([1, 1, 2])):
            warm = self._warm()
            expected = self.model.reserve(slot, worker, attempt, warm) if slot else None
            found = self.harness.leases.reserve(lease.ref, worker=worker, next_attempt_id=attempt, warm=warm)
            self._same(found, expected)

    def give_back_follower(self) -> None:
        """Or end it before it began, which has no effect."""
        live = [lease for lease in self.seen[-30:] if self.model.followed_under(*_ref(lease))]
        if not live:
            return
        lease, worker = self.chance.choice(live), self.chance.choice(WORKERS)
        mode = self.chance.choice([ReleaseMode.FREE] * 6 + list(ReleaseMode))
        slot = self.model.followed_under(*_ref(lease))
        if slot and mode is ReleaseMode.FREE:
            self.model.give_back_follower(slot, worker)
        following = self._new("a") if mode is ReleaseMode.ENDED else None
        for _ in range(self.chance.choice([1, 2])):
            assert (
                self.harness.leases.release(lease.ref, mode, worker=worker, next_attempt_id=following) is None
            )

    # -- holders ----------------------------------------------------------------------------------

    def take_over(self) -> None:
        lease, worker = self._pick(), self.chance.choice(WORKERS)
        slot = self.model.under(*_ref(lease)) if lease else None
        if lease is None or slot is None:
            return
        expected = self.model.take_over(slot, worker, lease.epoch + 1)
        assert self.harness.leases.take_over(lease.ref, worker=worker, new_epoch=lease.epoch + 1) == expected
        if expected:
            self.seen.append(_as_lease(slot.held, slot.fence))

    def renew(self) -> None:
        picked = list({lease.ref: lease for lease in self.seen[-20:] if self.chance.random() < 0.5}.values())
        followers = [lease for lease in picked if self.model.followed_under(*_ref(lease))]
        leases = [lease for lease in picked if lease not in followers]
        worker, lost = self.chance.choice(WORKERS), []
        for lease in [*leases, *followers]:
            slot, end = self.model.under(*_ref(lease)), self.model.settling.get(lease.attempt_id)
            held = slot.held if slot else end if end and _ref_of(end) == lease.ref else None
            followed = self.model.followed_under(*_ref(lease))
            assert self.harness.leases.is_held(lease.ref) == bool(held or followed)
            if followed:
                is_kept = followed.held.worker == worker
            else:
                is_kept = held is not None and self.model.renew(slot, held, worker)
            if not is_kept:
                lost.append(lease.ref)
        self.model.reach()
        assert self.harness.leases.renew(worker, leases, [], followers) == lost


def _ref(lease: Lease) -> tuple[str, str, str, int]:
    return lease.slot, lease.job_id, lease.attempt_id, lease.epoch


def _ref_of(held: Held) -> LeaseRef:
    return LeaseRef(held.slot, held.job, held.attempt, held.epoch)


def _as_lease(held: Held, fence: int) -> Lease:
    return Lease(
        POOL, held.slot, held.job, held.attempt, held.epoch, held.model, held.tenant, held.priority,
        fence, held.leased_us // 1000, held.charged,
    )  # fmt: skip
