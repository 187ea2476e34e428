"""Handing over a run: once its id is committed, and also if it began while the worker drained."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DataError

from gpus.protocol import Lease
from gpus.runners.base import Accepted, StillRunning
from jobs import transitions
from jobs.domain.states import AttemptState
from jobs.execution.attempt_run import HandedOver, Order, Remote, RunOutcome, Wait
from jobs.models import Attempt
from tests.jobs.execution.by_hand import OVER, by_hand, run_claimed

pytestmark = pytest.mark.django_db(transaction=True)


# -- the remote id --------------------------------------------------------------------------------------


def accepted(harness):
    """A run whose server accepted it as r1; its start is durable, its id is not. Its worker drains."""
    hands = by_hand(harness, Accepted("r1"))
    hands.submit()
    claimed = hands.worker.claims.claim_next("main", "m", None)
    run = hands.worker.loop_parts.make_run(claimed, lambda: None)
    assert run.step() == Remote("r1")
    hands.writer.at_once = False
    run.order(Order.HAND_OVER)
    hands.worker.completion.write_remote_id(claimed.lease, "r1", run.remote_id_committed)
    return hands, claimed.lease, run


def test_a_run_is_handed_over_once_its_id_is_durable(harness):
    hands, lease, run = accepted(harness)
    assert not run.remote_committed
    assert isinstance(run.step(), Wait)
    run.woken.clear()
    hands.writer.commit()
    assert Attempt.objects.get(id=lease.attempt_id).remote_id == "r1"
    assert run.woken.is_set(), "a draining worker must not wait for the next poll"
    assert run.step() == HandedOver()


def ended(lease: Lease) -> None:
    """A sweep took it for lost."""
    Attempt.objects.filter(id=lease.attempt_id).update(
        state=AttemptState.LOST, finished_at="2026-01-01T00:00Z"
    )


def taken_over(lease: Lease) -> None:
    Attempt.objects.filter(id=lease.attempt_id).update(epoch=lease.epoch + 1)


@pytest.mark.parametrize("moved", [ended, taken_over])
def test_a_run_whose_id_came_too_late_is_not_handed_over(harness, moved):
    """Nobody could go on with it: the attempt is not ours any more."""
    hands, lease, run = accepted(harness)
    moved(lease)
    hands.writer.commit()
    assert not run.remote_committed
    assert isinstance(run.step(), Wait)


def test_a_run_whose_id_can_not_be_stored_is_not_handed_over(harness, monkeypatch):
    def refuse(*_):
        raise DataError("invalid byte sequence")

    monkeypatch.setattr(transitions, "note_remote_id", refuse)
    hands, _lease, run = accepted(harness)
    hands.writer.commit()
    assert not run.remote_committed
    assert isinstance(run.step(), Wait)


# -- runs that begin while the worker drains ------------------------------------------------------------


def test_a_run_that_begins_after_the_drain_is_handed_over(harness):
    hands = by_hand(harness, Accepted("r1"))
    hands.submit()
    claimed = hands.worker.claims.claim_next("main", "m", None)
    hands.worker.drain()
    _, report = run_claimed(hands.worker, OVER, claimed)
    assert report.outcome == "handed_over"
    assert (hands.gpu.polled, hands.slot()) == ([], "adoptable")


def test_a_run_that_begins_after_the_interrupt_is_stopped(harness):
    hands = by_hand(harness, Accepted("r1"))
    job = hands.submit()
    claimed = hands.worker.claims.claim_next("main", "m", None)
    hands.worker.interrupt()
    _, report = run_claimed(hands.worker, OVER, claimed)
    assert report.outcome == "interrupted"
    assert (hands.gpu.sent, hands.gpu.polled) == ([], [])
    job.refresh_from_db()
    assert job.tries == 0


class Meanwhile(list):
    """Standing orders whose other side acts just after they are read."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = threading.Thread(target=act)

    def __iter__(self) -> Iterator[Any]:
        if self._act.ident is None:
            self._act.start()  # it waits for the lock
        return iter(list(super().__iter__()))

    def end(self) -> None:
        self._act.join()


@pytest.mark.parametrize(("stop", "ends"), [("drain", HandedOver), ("interrupt", RunOutcome)])
def test_an_order_just_after_the_look_at_the_standing_ones_reaches_the_run(harness, stop, ends):
    """It is among the runs before the standing orders are read: one of the two sides always sees the
    other."""
    hands = by_hand(harness, Accepted("r1"))
    hands.submit()
    worker = hands.worker
    claimed = worker.claims.claim_next("main", "m", None)
    run = worker.loop_parts.make_run(claimed, lambda: None)
    worker.runs._standing = meanwhile = Meanwhile(getattr(worker, stop))
    with worker.runs.holding(claimed.lease, run):
        meanwhile.end()
        if ends is HandedOver:
            assert run.step() == Remote("r1")
            run.remote_committed = True
        assert isinstance(run.step(), ends)


def test_an_ended_run_gets_no_orders(harness):
    hands = by_hand(harness, Accepted("r1"), StillRunning())
    hands.submit()
    claimed = hands.worker.claims.claim_next("main", "m", None)
    run = hands.worker.loop_parts.make_run(claimed, lambda: None)
    with hands.worker.runs.holding(claimed.lease, run):
        assert hands.worker.busy() == 1
    assert hands.worker.busy() == 0
