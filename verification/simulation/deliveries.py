"""Checks of callbacks: sent soon, at least once, one try at a time, by the schedule.

Checked between steps, and at the end against the record of the receivers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from django.conf import settings

from foundation.database import statements
from gpus.leasing.clock import COMPARE_SECONDS
from jobs.callbacks.deliver import JITTER
from jobs.models import Callback, ReceiverCircuit
from verification.simulation.callback_faults import DATABASE_AWAY
from verification.simulation.callbacks import CHECK_SECONDS, DELAYS_SECONDS, LEASE_MARGIN_SECONDS, LIMITS
from verification.simulation.receivers import Post
from verification.simulation.scheduler import START
from verification.simulation.world import World

SENT_SECONDS = 5.0 + CHECK_SECONDS - 1.0
"""As in production, plus the longer interval of checks here."""
_SLACK_SECONDS = 1.0
_NOISE_SECONDS = 0.5
"""Largest difference between clocks that agree."""
_State = Callback.State

_due = statements.Read(
    lambda: Callback.objects.filter(
        state=_State.PENDING.value, next_at__lte=statements.value(Callback, "next_at")
    ).values_list("id", "tenant_id", "receiver", "next_at")
)
_circuits = statements.Read(
    lambda: ReceiverCircuit.objects.order_by().values_list(
        "tenant_id", "receiver", "failures", "resting_until"
    )
)
_all = statements.Read(lambda: Callback.objects.order_by("id").values_list("id", "state", "tries", "next_at"))


class Deliveries:
    """Checks the callbacks of a world. broken: violated laws."""

    def __init__(self, world: World) -> None:
        self.broken: list[str] = []
        self._world = world
        self._missing_at: dict[str, float] = {}
        """By callback that is due: the last look at which it was not, or was not written yet. An end that its
        worker could not write for a while is due since long before."""
        self._looked_at = 0.0

    def check(self) -> None:
        """A due callback of a healthy receiver must be sent soon while the database answers, independent of
        other tenants' receivers."""
        now, since = self._world.scheduler.now, self._undisturbed_since()
        due = _due(next_at=START + timedelta(seconds=now))
        self._missing_at = {one[0]: self._missing_at.get(one[0], self._looked_at) for one in due}
        self._looked_at = now
        if since is None or now - since <= SENT_SECONDS or self.broken:
            return
        resting = {(one[0], one[1]): one[2:] for one in _circuits()} if due else {}
        for callback_id, tenant, receiver, next_at in due:
            if not self._world.receivers.are_healthy(tenant):
                continue
            at = max(since, _seconds(next_at), self._missing_at[callback_id], self._free_since(tenant))
            failures, resting_until = resting.get((tenant, receiver), (0, None))
            if failures >= LIMITS.circuit_failures and resting_until is not None:
                at = max(at, _seconds(resting_until))
            if now - at > SENT_SECONDS:
                self.broken.append(f"unsent: callback {callback_id} for {receiver} is due since {at:.1f}")

    def _undisturbed_since(self) -> float | None:
        """Return since when no fault has disturbed the process; None: one does."""
        world, role = self._world, self._world.callbacks
        if world.database_away or not role.process.is_healthy:
            return None
        since = max(role.began_at, world.database_back_at)
        if world.is_a_clock_wrong or role.process.skew_seconds:
            # a new process has the time once Redis answers
            since = max(since, world.disturbed_until + COMPARE_SECONDS)
        return since

    def _free_since(self, tenant: int) -> float:
        """Return since when no try hangs any more that began while one of the tenant's receivers failed."""
        healthy_since = self._world.receivers.healthy_since.get(tenant)
        return 0.0 if healthy_since is None else healthy_since + settings.DISPATCHER.callback_timeout_seconds

    def judge(self, faults: Collection[str]) -> list[str]:
        """Return all violations at the end. faults: names of those that were planned."""
        certain, posts = DATABASE_AWAY.isdisjoint(faults), self._world.receivers.posts
        broken = [one for row in _all() for one in self._row(*row, certain=certain)]
        if certain:
            broken += [one for callback_id, some in posts.items() for one in _order(callback_id, some)]
        return broken

    def _row(
        self, callback_id: str, state: str, tries: int, next_at: datetime | None, *, certain: bool
    ) -> Iterator[str]:
        posts = self._world.receivers.posts.get(callback_id, [])
        statuses = {post.status for post in posts}
        if state == _State.DELIVERED and 200 not in statuses:
            yield f"callback {callback_id} is delivered, but its receiver accepted none"
        if state == _State.GONE and 410 not in statuses:
            yield f"callback {callback_id} is gone, but its receiver never answered 410"
        if state == _State.GAVE_UP and tries < len(DELAYS_SECONDS):
            yield f"callback {callback_id} was given up after {tries} tries"
        if certain and len(posts) > tries:
            yield f"callback {callback_id} was sent {len(posts)} times in {tries} tries"
        if state == _State.PENDING:
            latest = self._world.scheduler.now + _lease_seconds() + _SLACK_SECONDS
            if next_at is None or _seconds(next_at) > latest:
                yield f"callback {callback_id} waits until {next_at}"


def _order(callback_id: str, posts: Sequence[Post]) -> Iterator[str]:
    """Yield violations: one try at a time, none after a success, and none before the schedule or the lease
    allows it."""
    for post, later in pairwise(posts):
        ended = later.began if post.ended is None else post.ended
        died_at = post.sender.died_at
        is_recorded = died_at is None or died_at > ended + _SLACK_SECONDS
        if post.ended is None or later.began < ended:
            yield f"twice: callback {callback_id} is sent at {later.began:.2f} during another try"
        elif post.status == 200 and is_recorded:
            yield f"twice: callback {callback_id} is sent at {later.began:.2f} after its delivery"
        elif post.status == 200 and later.began - post.began < _lease_seconds() - _SLACK_SECONDS:
            yield f"early: callback {callback_id} is sent again at {later.began:.2f} under another's lease"
        elif is_recorded and later.began - ended < DELAYS_SECONDS[1] * (1 - JITTER) - _NOISE_SECONDS:
            yield f"early: callback {callback_id} is sent again at {later.began:.2f}, after {ended:.2f}"


def _seconds(at: datetime) -> float:
    return (at - START).total_seconds()


def _lease_seconds() -> float:
    return float(settings.DISPATCHER.callback_timeout_seconds + LEASE_MARGIN_SECONDS)
