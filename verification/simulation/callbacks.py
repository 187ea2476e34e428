"""The callbacks process: the product's own delivery worker, whose threads and sockets are fibers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from jobs.callbacks import deliver, delivery_worker
from jobs.callbacks.deliver import Taken
from jobs.callbacks.delivery_worker import DeliveryWorker
from jobs.callbacks.pick import Limits
from jobs.callbacks.sending import Message
from jobs.ports import Ports
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.receivers import Receivers
from verification.simulation.scheduler import Event, Process, Scheduler

CHECK_SECONDS = 2.0
"""Longer than in production."""
DELAYS_SECONDS = (0.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0)
"""As many tries as in production, sooner: some messages are given up within a history."""
LEASE_MARGIN_SECONDS = 5.0
LIMITS = Limits(total=4, per_tenant=2, per_receiver=2, bytes=64_000_000, circuit_failures=3)
"""So low that the hanging receivers of one tenant use up its share."""
_CARRIED_SECONDS = 0.02
"""Longest delay of a message in the broker."""


def use_short_delays() -> None:
    """Shorten delays that take hours in production."""
    delivery_worker.LOOK_SECONDS = CHECK_SECONDS
    deliver.DELAYS_SECONDS = DELAYS_SECONDS
    deliver.LEASE_MARGIN_SECONDS = LEASE_MARGIN_SECONDS


class FiberCondition:
    """`threading.Condition` for fibers, which switch only at scheduler points."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._notified = Event(scheduler)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify(self) -> None:
        """Wake the waiting fiber."""
        self._notified.set()

    def wait_for(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait until notified, at most `seconds` of virtual time; return at once if the condition holds."""
        if not is_so():
            self._notified.clear()
            self._notified.wait(seconds)


class FiberDeliveryWorker(DeliveryWorker):
    """The product's callbacks worker, with fibers in place of threads and simulated receivers."""

    def __init__(self, ports: Ports, scheduler: Scheduler, process: Process, receivers: Receivers) -> None:
        super().__init__(ports, LIMITS)
        self._changed = FiberCondition(scheduler)  # type: ignore[assignment]
        self._scheduler, self._process, self._receivers = scheduler, process, receivers

    def start(self) -> None:
        self._scheduler.spawn(self._process, self._run)

    def _hand_over(self, message: Message, taken: Taken) -> None:
        def send() -> None:
            self._ended(taken, self._receivers.post(message, self._process, taken.at))

        self._scheduler.spawn(self._process, send)

    def _pause(self) -> None:
        self._scheduler.sleep(1.0)


class CallbacksRole:
    """One callbacks process. began_at: in virtual seconds."""

    def __init__(self, scheduler: Scheduler, process: Process, ports: Ports, receivers: Receivers) -> None:
        self.process, self.began_at = process, scheduler.now
        self.worker = FiberDeliveryWorker(ports, scheduler, process, receivers)
        self.worker.start()


class CallbackWakes:
    """The messages that name due callbacks; only faults of the broker lose them."""

    def __init__(
        self,
        scheduler: Scheduler,
        active_faults: ActiveFaults,
        chance: random.Random,
        role: Callable[[], CallbacksRole],
    ) -> None:
        self._scheduler, self._faults, self._chance, self._role = scheduler, active_faults, chance, role
        self._broker = Process("callback wakes")

    def send(self, callback_ids: Sequence[str]) -> None:
        if not self._faults.broker_down and self._chance.random() >= self._faults.wake_lost:
            self._scheduler.spawn(self._broker, partial(self._deliver, callback_ids))

    def _deliver(self, callback_ids: Sequence[str]) -> None:
        self._scheduler.sleep(self._chance.random() * _CARRIED_SECONDS)
        if (role := self._role()).process.is_healthy:
            for callback_id in callback_ids:
                role.worker.nudge(callback_id)
