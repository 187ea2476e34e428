"""Clients with a ledger of their own: they submit under a key until it is accepted, now or for later, and
sometimes cancel."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError

from foundation.database import statements
from jobs.domain.errors import ArtifactMissing, NotCancellable, QuotaExhausted, Refused, RunAtInPast
from jobs.models import Job
from jobs.operations.jobs import cancel_job
from jobs.submission.request import Submit, SubmitRequest, fingerprint
from jobs.submission.submit import submit_job
from verification.simulation.scheduler import START
from verification.simulation.size import Size
from verification.simulation.world import SECOND_MODEL, WARM_UP_SECONDS, World

SUBMIT_PAUSE_SECONDS = 0.05
CALLBACK_SHARE = 0.25
"""Share of jobs with a callback; a delivery costs as much as a tenth of a job."""
RETRY_SECONDS = 10.0
"""How long a client with a used-up quota waits, instead of until midnight."""


_ids = statements.Read(lambda: Job.objects.order_by().values_list("id", flat=True))


@dataclass(slots=True)
class Order:
    """A job that a client submits. job_ids: all ids that it got for its key; more than one is a defect."""

    key: str
    tenant: int
    model: str
    payload: dict[str, Any]
    priority: int
    at: float
    deadline_seconds: float | None = None
    max_retries: int | None = None
    cancel_after: float | None = None
    run_at: float | None = None
    """Seconds since START; None: now."""
    callback_url: str = ""
    job_ids: set[str] = field(default_factory=set)
    accepted_at: float = 0.0
    prepare: Callable[[], None] | None = None
    """Is called before the first try, and after a refusal; None: nothing is to be prepared."""

    @property
    def must_complete(self) -> bool:
        """Return True unless its client's own choices may end it otherwise."""
        return not (
            self.payload["fails"] or self.deadline_seconds or self.model == "once" or self.cancel_after
        )


class Clients:
    """All clients of a world, with their orders."""

    def __init__(self, world: World, size: Size) -> None:
        self._world, self._size = world, size
        chance = random.Random(f"{world.seed} clients")
        self.orders = [self._order(chance, number) for number in range(size.jobs)]
        for order in self.orders:
            order.run_at = chance.choice([None] * 4 + [order.at + chance.choice([0.3, 3.0, 15.0])])
        self._callbacks = random.Random(f"{world.seed} callback URLs")
        for order in self.orders:
            if self._callbacks.random() < CALLBACK_SHARE:
                order.callback_url = self._callback_url(order.tenant)
            world.scheduler.spawn(world.outside, partial(self._submit, order))
        world.on_forgotten = self._ask_again
        world.send_jobs = self._send_jobs
        world.request_callbacks = self._request_callbacks

    def add(self, order: Order, prepare: Callable[[], None]) -> None:
        """Submit one more job in its time. prepare: as of `Order`."""
        order.prepare = prepare
        self.orders.append(order)
        self._world.scheduler.spawn(self._world.outside, partial(self._submit, order))

    def waiting(self) -> int:
        """Return the number of orders that were not accepted yet."""
        return sum(not order.job_ids for order in self.orders)

    def _order(self, chance: random.Random, number: int) -> Order:
        second = [SECOND_MODEL] if self._world.two_fleets else []
        model = chance.choice(["zimg", "zimg", "ltx2", "ltx2", "once", *second])
        seconds = chance.choice([0.5, 2.0, 5.0, 10.0]) * (1.5 if model == "ltx2" else 1.0)
        return Order(
            key=f"key-{number}",
            tenant=chance.choice(self._world.tenants),
            model=model,
            payload={"seconds": seconds, "fails": chance.choice([0.0, 0.0, 0.0, 0.5])},
            priority=chance.choice([1, 5, 5, 5, 9]),
            at=WARM_UP_SECONDS + chance.random() * self._size.submit_seconds,
            deadline_seconds=chance.choice([None] * 9 + [30.0]),
            max_retries=chance.choice([None, None, 3]),
            cancel_after=chance.choice([None] * 5 + [chance.random() * 20.0]),
        )

    def _request_callbacks(self, tenant: int) -> None:
        for order in self.orders:
            if order.tenant == tenant and not order.job_ids and not order.callback_url:
                order.callback_url = self._callback_url(tenant)

    def _callback_url(self, tenant: int) -> str:
        return self._callbacks.choice(self._world.receivers.urls(tenant))

    def _send_jobs(self, tenant: int, model: str, count: int, seconds: float) -> None:
        now = self._world.scheduler.now
        for number in range(count):
            order = Order(
                key=f"key-{len(self.orders)}",
                tenant=tenant,
                model=model,
                payload={"seconds": seconds, "fails": 0.0},
                priority=5,
                at=now + SUBMIT_PAUSE_SECONDS * number,
            )
            self.orders.append(order)
            self._world.scheduler.spawn(self._world.outside, partial(self._submit, order))

    def _ask_again(self) -> None:
        """Submit again the orders whose jobs the database has lost since they were accepted."""
        known = set(_ids())
        for order in self.orders:
            if order.job_ids - known:
                order.job_ids &= known
                order.at = 0.0
                self._world.scheduler.spawn(self._world.outside, partial(self._submit, order))

    def _submit(self, order: Order) -> None:
        world = self._world
        world.scheduler.sleep(max(0.0, order.at - world.scheduler.now))
        again = 0.2
        if order.prepare is not None:
            order.prepare()
        while True:
            asked_at = world.scheduler.now
            try:
                done = world.web.call(
                    lambda ports: submit_job(_request(order), tenant=order.tenant, ports=ports)
                )
                if world.forgotten.since(asked_at):
                    continue  # the answer may be about a commit that the database lost
                order.job_ids.add(done.job.id)
                order.accepted_at = world.scheduler.now
                break
            except RunAtInPast:  # it was never accepted, otherwise this would be a repeated submit
                order.run_at = None
            except QuotaExhausted as error:  # it waits, but not until midnight
                world.scheduler.sleep(min(error.retry_after_seconds or 0.0, RETRY_SECONDS))
            except (ConnectionError, DatabaseError, Refused) as error:
                world.scheduler.note(order.key, f"submit failed: {error}")
                world.scheduler.sleep(again)
                again = min(again * 2.0, 5.0)
                if isinstance(error, ArtifactMissing) and order.prepare is not None:
                    order.prepare()
        if order.cancel_after is not None:
            world.scheduler.sleep(order.cancel_after)
            self._cancel(order)

    def _cancel(self, order: Order) -> None:
        if not order.job_ids:
            return  # lost; the caller of a later look-up cancels it
        (job_id, *_), accepted_at = sorted(order.job_ids), order.accepted_at
        for _ in range(20):
            asked_at = self._world.scheduler.now
            try:
                self._world.web.call(lambda ports: cancel_job(job_id, ports=ports))
                if self._world.forgotten.since(asked_at):
                    continue
                return
            except NotCancellable:
                return
            except Job.DoesNotExist:
                if not self._world.forgotten.since(accepted_at):
                    raise
                return  # lost since it was accepted: `_ask_again` submits it again
            except (ConnectionError, DatabaseError):
                self._world.scheduler.sleep(1.0)


def _request(order: Order) -> SubmitRequest:
    body = Submit(
        model=order.model,
        payload=order.payload,
        priority=order.priority,
        deadline_seconds=order.deadline_seconds,
        max_retries=order.max_retries,
        callback_url=order.callback_url,
        run_at=None if order.run_at is None else START + timedelta(seconds=order.run_at),
    )
    return SubmitRequest(body, order.key, fingerprint([order.payload, order.run_at]))
