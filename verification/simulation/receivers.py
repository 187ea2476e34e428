"""Receivers of callbacks under virtual time, and the record of what came to them."""

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
"""Of a tenant; more than it may have callbacks in flight."""
_FIRST_PORT = 8000


class Mood(StrEnum):
    HEALTHY = "healthy"
    SLOW = "slow"
    HANGS = "hangs"
    """It accepts, and never answers."""
    REFUSES = "refuses"
    """No connection."""
    FAILS = "fails"
    """Answers 503."""
    GONE = "gone"
    """Answers 410."""


_STATUS = {Mood.FAILS: 503, Mood.GONE: 410}


@dataclass(slots=True)
class Post:
    """One request; times in virtual seconds. ended: when its sender had the answer, gave up or died; status:
    None where no answer came."""

    message_id: str
    sender: Process
    began: float
    ended: float | None = None
    status: int | None = None


class Receivers:
    """Each tenant has some of its own. A receiver is healthy unless a fault says otherwise.

    posts: of every message, in their order. healthy_since: by tenant; the latest end of a time in which
    one of its receivers was not.
    """

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
        self._moods: dict[str, Mood] = {}

    def urls(self, tenant: int) -> list[str]:
        """Of literal addresses, so that no name is looked up."""
        return self._urls[tenant]

    def are_healthy(self, tenant: int) -> bool:
        return not self._moods or not any(receiver_of(url) in self._moods for url in self._urls[tenant])

    def change(self, tenant: int, url: str, mood: Mood) -> None:
        receiver = receiver_of(url)
        if mood is not Mood.HEALTHY:
            self._moods[receiver] = mood
        elif self._moods.pop(receiver, None) is not None:
            self.healthy_since[tenant] = self._scheduler.now

    def heal(self) -> None:
        for tenant, urls in self._urls.items():
            for url in urls:
                self.change(tenant, url, Mood.HEALTHY)

    def post(self, message: Message, sender: Process, at: datetime) -> Outcome:
        """As `jobs.callbacks.sending.send`, in a fiber of the sender; a message is signed as there."""
        headers, receiver = sign(message.secrets, message.id, at, message.body), receiver_of(message.url)
        began = self._scheduler.now
        self._scheduler.point(f"POST {receiver}")
        if self._mood(receiver) is Mood.REFUSES:
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
        """The status, after as long as it takes; None: there was none in time."""
        mood = self._mood(receiver)
        if mood is Mood.HANGS:
            self._scheduler.sleep(settings.DISPATCHER.callback_timeout_seconds)
            return None
        self._scheduler.sleep(self._chance.uniform(*((2.0, 8.0) if mood is Mood.SLOW else (0.005, 0.1))))
        return _STATUS.get(mood, 200)

    def _mood(self, receiver: str) -> Mood:
        return self._moods.get(receiver, Mood.HEALTHY)

    def _milliseconds(self, began: float) -> int:
        return int((self._scheduler.now - began) * 1000)
