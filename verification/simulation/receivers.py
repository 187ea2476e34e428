"""Receivers of callbacks under virtual time, and the record of their requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.conf import settings

from jobs.callbacks.guard import receiver_of
from jobs.callbacks.message import sign
from jobs.callbacks.sending import Answer, Message, Outcome
from verification.simulation.scheduler import Process, Scheduler

RECEIVERS_EACH = 6
"""Receivers per tenant; more than its limit of callbacks in flight."""
_FIRST_PORT = 8000


class Behaviour(StrEnum):
    """How a receiver answers."""

    HEALTHY = "healthy"
    SLOW = "slow"
    HANGS = "hangs"
    """Accepts the connection and never answers."""
    REFUSES = "refuses"
    """Refuses connections."""
    FAILS = "fails"
    """Answers 503."""
    GONE = "gone"
    """Answers 410."""


_STATUS = {Behaviour.FAILS: 503, Behaviour.GONE: 410}


@dataclass(slots=True)
class Post:
    """One request; times in virtual seconds. ended: when its sender had the answer, gave up or died. status:
    None without an answer."""

    message_id: str
    sender: Process
    began: float
    ended: float | None = None
    status: int | None = None


class Receivers:
    """The receivers of all tenants. A receiver is healthy unless a fault changes that.

    posts: requests of every message, in order. healthy_since: by tenant, the latest end of a fault of one of
    its receivers."""

    def __init__(self, scheduler: Scheduler, chance: random.Random, tenants: Sequence[int]) -> None:
        self.posts: dict[str, list[Post]] = {}
        self.healthy_since: dict[int, float] = {}
        self._scheduler, self._chance = scheduler, chance
        self._urls = {
            tenant: [
                f"https://93.184.216.34:{_FIRST_PORT + 100 * at + number}/told"
                for number in range(RECEIVERS_EACH)
            ]
            for at, tenant in enumerate(tenants)
        }
        self._moods: dict[str, Behaviour] = {}

    def urls(self, tenant: int) -> list[str]:
        """Return URLs with literal addresses, so that no name is resolved."""
        return self._urls[tenant]

    def are_healthy(self, tenant: int) -> bool:
        """Return True if none of the tenant's receivers has a fault."""
        return not self._moods or not any(receiver_of(url) in self._moods for url in self._urls[tenant])

    def change(self, tenant: int, url: str, behaviour: Behaviour) -> None:
        receiver = receiver_of(url)
        if behaviour is not Behaviour.HEALTHY:
            self._moods[receiver] = behaviour
        elif self._moods.pop(receiver, None) is not None:
            self.healthy_since[tenant] = self._scheduler.now

    def heal(self) -> None:
        for tenant, urls in self._urls.items():
            for url in urls:
                self.change(tenant, url, Behaviour.HEALTHY)

    def post(self, message: Message, sender: Process, at: datetime) -> Outcome:
        """Simulate `jobs.callbacks.sending.send`, in a fiber of the sender; a message is signed as there."""
        headers, receiver = sign(message.secrets, message.id, at, message.body), receiver_of(message.url)
        began = self._scheduler.now
        self._scheduler.point(f"POST {receiver}")
        if self._behaviour(receiver) is Behaviour.REFUSES:
            return Outcome(None, "ConnectionRefusedError: Connection refused", self._milliseconds(began))
        post = Post(headers["webhook-id"], sender, self._scheduler.now)
        self.posts.setdefault(post.message_id, []).append(post)
        try:
            post.status = self._answer(receiver)
            self._scheduler.point(f"answer of {receiver}")
        finally:
            post.ended = self._scheduler.now
        took = self._milliseconds(began)
        if post.status is None:
            return Outcome(None, "TimeoutError: no answer", took)
        error = "" if post.status == 200 else f"HTTP {post.status}"
        return Outcome(Answer(post.status, None), error, took)

    def _answer(self, receiver: str) -> int | None:
        """Return the status after the receiver's time; None: no answer in time."""
        behaviour = self._behaviour(receiver)
        if behaviour is Behaviour.HANGS:
            self._scheduler.sleep(settings.DISPATCHER.callback_timeout_seconds)
            return None
        self._scheduler.sleep(
            self._chance.uniform(*((2.0, 8.0) if behaviour is Behaviour.SLOW else (0.005, 0.1)))
        )
        return _STATUS.get(behaviour, 200)

    def _behaviour(self, receiver: str) -> Behaviour:
        return self._moods.get(receiver, Behaviour.HEALTHY)

    def _milliseconds(self, began: float) -> int:
        return int((self._scheduler.now - began) * 1000)
