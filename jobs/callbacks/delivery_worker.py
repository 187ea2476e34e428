"""Delivers callbacks: one thread for the database, one event loop for the receivers, no thread per receiver.

A Celery message is only a hint. The worker also reads due callbacks every second, and after each try, so that
neither a dead broker nor a lost message delays a callback.
"""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections, connection

from jobs.callbacks.deliver import Taken, settle, take
from jobs.callbacks.guard import refused_origins
from jobs.callbacks.message import signing_secrets
from jobs.callbacks.pick import Circuit, Limits, Picker, Queue, Shares
from jobs.callbacks.sending import Message, Outcome, Resolver, failure_text, send
from jobs.ports import Ports

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
NUDGES_KEPT = 1000
"""Hints kept in memory; the callbacks of further ones are read from the database."""
_AT_ONCE = 128
_AFTER_ERROR_SECONDS = 1.0
_SPARE_FILES = 256
"""Open files for the database, the broker and the rest of the process."""


class DeliveryWorker:
    """The callbacks worker, one per process.

    bounds: of the messages in flight; None: as the settings and the open files allow.
    """

    def __init__(self, ports: Ports, bounds: Limits | None = None) -> None:
        self._clock, self._clocks, self._registry = ports.clock, ports.clock_watch, ports.registry
        self._shares = Shares(bounds or _within_open_files(limits()))
        self._picker = Picker()
        self._changed = threading.Condition()
        self._nudged: dict[str, None] = {}
        self._sent: list[tuple[Taken, Outcome]] = []
        self._stopping = self._draining = False
        self._look_at = 0.0
        self._is_more = False
        self._loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = [
            threading.Thread(target=self._run_loop, name="callback-sockets", daemon=True),
            threading.Thread(target=self._run, name="callbacks", daemon=True),
        ]

    def start(self) -> None:
        """Start both threads."""
        self._loop = asyncio.new_event_loop()
        for thread in self._threads:
            thread.start()

    def nudge(self, callback_id: str) -> None:
        """Hint that this message may be due. Returns at once."""
        with self._changed:
            if self._draining:
                return
            if len(self._nudged) < NUDGES_KEPT:
                self._nudged[callback_id] = None
            else:
                self._is_more = True
            self._changed.notify()

    def busy(self) -> int:
        """Return the number of messages taken and not yet settled."""
        return self._shares.in_flight

    def drain(self) -> None:
        """Take no more messages."""
        with self._changed:
            self._draining = True
            self._nudged.clear()

    def stop(self, within_seconds: float) -> None:
        """Drain, wait up to this time for tries in flight, and end the threads. Tries that are still in
        flight then are sent again when their lease expires."""
        self.drain()
        until = time.monotonic() + within_seconds
        with self._changed:
            while self.busy() and time.monotonic() < until:
                self._changed.wait(0.1)
            self._stopping = True
            self._changed.notify_all()
        sockets, database = self._threads
        database.join(5.0)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_loop)
        sockets.join(5.0)

    def _run(self) -> None:
        try:
            while not self._stopping:
                with self._changed:
                    left = self._look_at - self._clock.monotonic()
                    self._changed.wait_for(self._has_work, max(left, 0.0))
                try:
                    self._step()
                except (OperationalError, InterfaceError) as error:
                    log.warning("callbacks_wait_for_database", error=str(error), kind=type(error).__name__)
                    self._pause()
                except Exception:
                    log.exception("callbacks_step_failed")
                    self._pause()
        finally:
            connection.close()

    def _has_work(self) -> bool:
        return bool(self._nudged or self._sent or self._stopping)

    def _pause(self) -> None:
        connection.close()
        time.sleep(_AFTER_ERROR_SECONDS)

    def _step(self) -> None:
        ended = self._settle()
        nudged = self._take_nudges()
        # with a wrong clock it would take messages that another process still sends
        if self._draining or self._clocks.is_learning():
            self._look_at = self._clock.monotonic() + LOOK_SECONDS
            return
        self._take(nudged)
        if self._clock.monotonic() >= self._look_at:
            close_old_connections()
            self._look_for_due()
        elif ended and self._is_more:
            self._look_for_due()

    def _take_nudges(self) -> list[str]:
        with self._changed:
            nudged = list(self._nudged)[:_AT_ONCE]
            for one in nudged:
                del self._nudged[one]
        return nudged

    def _look_for_due(self) -> None:
        self._look_at = self._clock.monotonic() + LOOK_SECONDS
        ids, self._is_more = self._picker.pick(self._shares, self._clock.now())
        self._take(ids)

    def _take(self, ids: Sequence[str]) -> None:
        now = self._clock.now()
        planned = self._shares.copy()

        def may_start(queue: Queue, circuit: Circuit, size: int) -> bool:
            may = planned.may_start(queue, circuit, now, size=size)
            if may:
                planned.start(queue, size)
            return may

        taken, refused = take(ids, now, may_start)
        self._is_more |= bool(refused)
        for one in taken:
            self._shares.start(one.queue, one.size)
            self._begin(one)

    def _begin(self, taken: Taken) -> None:
        try:
            secrets, refused = signing_secrets(taken.tenant, taken.at), refused_origins(self._registry)
        except Exception as failure:
            self._ended(taken, Outcome(None, failure_text(failure), 0))
            return
        message = Message(taken.id, taken.tenant.pk, taken.url, taken.body, secrets, refused)
        self._hand_over(message, replace(taken, body=""))

    def _hand_over(self, message: Message, taken: Taken) -> None:
        """Pass the message to the event loop, which calls `_ended` after the try. Returns at once."""
        self._loop.call_soon_threadsafe(self._send, message, taken)

    def _send(self, message: Message, taken: Taken) -> None:
        """Begin the try; called in the event loop's thread."""
        task = self._loop.create_task(self._deliver(message, taken))
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, message: Message, taken: Taken) -> None:
        self._ended(taken, await send(message, self._resolver, now=taken.at))

    def _ended(self, taken: Taken, outcome: Outcome) -> None:
        with self._changed:
            self._sent.append((taken, outcome))
            self._changed.notify()

    def _settle(self) -> bool:
        """Settle ended tries; return False if there are none. Tries that can't be written now are kept until
        their lease expires."""
        with self._changed:
            sent, self._sent = self._sent[:_AT_ONCE], self._sent[_AT_ONCE:]
        if not sent:
            return False
        try:
            settle(sent, self._clock.now())
        except (OperationalError, InterfaceError):
            self._keep(sent)
            raise
        except Exception:
            self._settle_each(sent)
        else:
            self._end(sent)
        return True

    def _settle_each(self, sent: Sequence[tuple[Taken, Outcome]]) -> None:
        """Settle each try in its own transaction. One that can't be written is sent again when its lease
        expires."""
        for at, one in enumerate(sent):
            try:
                settle([one], self._clock.now())
            except (OperationalError, InterfaceError):
                self._keep(sent[at:])
                raise
            except Exception:
                log.exception("callback_not_settled", callback_id=one[0].id)
            self._end([one])

    def _keep(self, sent: Sequence[tuple[Taken, Outcome]]) -> None:
        now = self._clock.now()
        with self._changed:
            self._sent[:0] = [one for one in sent if one[0].held_until > now]
        self._end([one for one in sent if one[0].held_until <= now])

    def _end(self, sent: Sequence[tuple[Taken, Outcome]]) -> None:
        for taken, _ in sent:
            self._shares.end(taken.queue, taken.size)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._resolver = Resolver()
        self._loop.run_forever()
        self._loop.close()

    def _end_loop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._loop.call_soon(self._loop.stop)


def limits() -> Limits:
    """Return the limits of the settings."""
    knobs = settings.DISPATCHER
    return Limits(
        total=knobs.callbacks_in_flight,
        per_tenant=knobs.callbacks_in_flight_per_tenant,
        per_receiver=knobs.callbacks_in_flight_per_receiver,
        bytes=knobs.callback_bytes_in_flight,
        circuit_failures=knobs.callback_circuit_failures,
    )


def _within_open_files(wanted: Limits) -> Limits:
    files = _open_files(wanted.total + settings.DISPATCHER.callback_lookups)
    return replace(wanted, total=min(wanted.total, max(files - _SPARE_FILES, 8)))


def _open_files(wanted: int) -> int:
    """Raise the limit of open files if needed, and return the number that this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted += _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < wanted:
        log.warning("callbacks_bounded_by_open_files", wanted=wanted, allowed=soft)
    return wanted if soft == resource.RLIM_INFINITY else soft
