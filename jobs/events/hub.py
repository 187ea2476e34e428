"""Event hub: one per process; it turns announcements into new events for any number of listeners.

An announcement marks a job dirty. All dirty jobs are read together, in one thread, with two queries and a
bounded result, and the events are passed to the listeners, which never poll. All watched jobs are marked
dirty every `poll_seconds` while Redis is unavailable, and every `check_seconds` otherwise, because
announcements can be lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis
import structlog
from django.conf import settings
from django.db import close_old_connections, connections
from django.db.models import Q
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from gpus.leasing.connect import addresses, credentials
from jobs.domain.access import shown_event
from jobs.domain.states import JobState, is_final
from jobs.events.announce import SILENCE_SECONDS, channel, read_announcement
from jobs.models import Event, Job

log = structlog.get_logger()
Read = TypeVar("Read")

OUTPUT_EVENTS = frozenset({"partial"})
"""Types of events that contain a part of a result."""
PROGRESS_EVENTS = frozenset({"progress", "log", *OUTPUT_EVENTS})
"""Types of events that a run sends, within limits; they don't change the job's state."""
MAX_EVENTS = 500
"""Events per read; a partial result may have 64 KiB."""

_OPTIONS: dict[str, Any] = {"socket_connect_timeout": 2, "socket_timeout": 5}

FROM_NOW_ON = 2**62
"""Cursor beyond all events, for listeners that wait only for the job's end."""
_CHUNK = 500
_RECONNECT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event of a job. seq: number of the event within the job."""

    seq: int
    type: str
    data: Mapping[str, Any]

    @property
    def sse_id(self) -> str:
        """The id with which a reader continues after this event."""
        return str(self.seq)

    def as_sse(self, *, with_output: bool, in_full: bool, streams: frozenset[str] = frozenset()) -> bytes:
        """Return the event in the format of a `text/event-stream`. with_output: the reader may see results.
        in_full: the reader may see details for operators (`jobs.domain.access`). streams: of log lines that
        the reader may see."""
        tenant_errors = settings.DISPATCHER.tenant_errors
        shown = shown_event(self.data, in_full=in_full, streams=streams, tenant_errors=tenant_errors)
        return self.written(self.type, shown_data(self.type, shown, with_output=with_output))

    def written(self, kind: str, data: Mapping[str, Any]) -> bytes:
        """Return the event with this type and data, as they are."""
        return f"id: {self.sse_id}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


@dataclass(frozen=True, slots=True)
class NewEvents:
    """Events of a job that are new to a listener, and the job's state.

    after: number after which the events begin. last_seq: number of the job's last event. has_more: events are
    missing up to last_seq; read again for them.
    """

    job_id: str
    status: str
    last_seq: int
    after: int
    events: tuple[SeenEvent, ...]
    has_more: bool = False

    @property
    def is_over(self) -> bool:
        """True if the job has ended and these are its last events."""
        return is_final(JobState(self.status)) and not self.has_more


def shown_data(kind: str, data: Mapping[str, Any], *, with_output: bool) -> Mapping[str, Any]:
    """Return an event's data without partial output, log lines and a progress' text, unless the reader may
    see results."""
    if with_output or kind not in PROGRESS_EVENTS:
        return data
    if kind in OUTPUT_EVENTS:
        return {**data, "output": None, "output_hidden": True}
    if lines := data.get("lines"):
        return {**data, "lines": [], "lines_hidden": data.get("lines_hidden", 0) + len(lines)}
    return {name: value for name, value in data.items() if name != "text"}


def read_new_events(cursors: Mapping[str, int], most: int = MAX_EVENTS) -> dict[str, NewEvents]:
    """Return the new events of jobs that exist, by job id.

    cursors: number of the last seen event, by job id. At most `most` are read in all, and at least one
    of each job that has any.
    """
    heads = Job.objects.filter(id__in=list(cursors)).values_list("id", "state", "event_seq")
    found = {job_id: (state, last) for job_id, state, last in heads}
    moved: dict[int, list[str]] = {}
    for job_id, (_, last) in found.items():
        if last > cursors[job_id]:
            moved.setdefault(cursors[job_id], []).append(job_id)
    events: dict[str, list[SeenEvent]] = {}
    if moved:
        each = max(1, most // sum(map(len, moved.values())))
        # a range of numbers bounds the rows; it is empty only if events of refused attempts were deleted
        conditions = [Q(job_id__in=ids, seq__gt=seen, seq__lte=seen + each) for seen, ids in moved.items()]
        for row in Event.objects.filter(Q(*conditions, _connector=Q.OR)).order_by("job_id", "seq"):
            events.setdefault(row.job_id, []).append(_seen(row))
        for seen, ids in moved.items():
            for job_id in ids:
                if job_id not in events:
                    events[job_id] = _after_gap(job_id, seen, each)
    return {
        job_id: _news(job_id, state, last, cursors[job_id], events.get(job_id, []))
        for job_id, (state, last) in found.items()
    }


def done_event(job_id: str, status: str, *, kind: str = "job") -> bytes:
    """Return the last event of a stream. It has no id, so that a reconnecting client keeps that of the last
    real event. kind: as in `Follow`."""
    data = json.dumps({f"{kind}_id": job_id, "status": status})
    return f"event: done\ndata: {data}\n\n".encode()


def _closing(call: Callable[[], Read]) -> Callable[[], Read]:
    def read() -> Read:
        close_old_connections()
        try:
            return call()
        finally:
            close_old_connections()

    return read


def _news(job_id: str, state: str, last: int, after: int, events: list[SeenEvent]) -> NewEvents:
    has_more = bool(events) and events[-1].seq < last
    return NewEvents(job_id, state, last, after, tuple(events), has_more)


def _after_gap(job_id: str, seen: int, most: int) -> list[SeenEvent]:
    """Return the next events after a gap in the numbers, which can be longer than one range."""
    return [_seen(row) for row in Event.objects.filter(job_id=job_id, seq__gt=seen).order_by("seq")[:most]]


def _seen(row: Event) -> SeenEvent:
    data = {"job_id": row.job_id, "seq": row.seq, "type": row.type, "at": row.at.isoformat(), **row.data}
    return SeenEvent(row.seq, row.type, data)


def subscriber_client(url: str, turn: int = 0) -> Redis:
    """Return an asyncio client for subscribing to announcements, for every kind of REDIS_URL.

    turn: number of the try; each one uses the next cluster node, because a node may be gone. Any node works:
    PUBLISH reaches all of them. Raises ValueError for an invalid URL.
    """
    parts = urlsplit(url)
    options = {**_OPTIONS, "retry": Retry(NoBackoff(), 0)}
    if parts.scheme == "redis+cluster":
        nodes = addresses(parts, 6379)
        host, port = nodes[turn % len(nodes)]
        return Redis(host=host, port=port, **credentials(parts), **options)
    if parts.scheme == "redis+sentinel":
        master = parts.path.strip("/").partition("/")[0]
        never = {"retry": options["retry"]}  # by default redis-py tries each unavailable Sentinel ten times
        sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
            addresses(parts, 26379), sentinel_kwargs=_OPTIONS | never, **_OPTIONS
        )
        client: Redis = sentinel.master_for(master, **credentials(parts), **options)
        return client
    return Redis.from_url(url, **options)


@dataclass(slots=True, eq=False)
class Watch:
    """One listener of a job. Its queue holds one read, so that a slow listener uses bounded memory.

    cursor: number of the last event put into the queue. mark_dirty: requests another read. was_skipped: a
    read was skipped because the queue was full.
    """

    job_id: str
    cursor: int
    mark_dirty: Callable[[list[str]], None]
    was_skipped: bool = False
    queue: asyncio.Queue[NewEvents | None] = field(default_factory=lambda: asyncio.Queue(1))

    async def events(self) -> NewEvents | None:
        """Wait for new events; None if the job was deleted."""
        news = await self.queue.get()
        if self.was_skipped:
            self.was_skipped = False
            self.mark_dirty([self.job_id])
        return news

    def is_ready(self) -> bool:
        """Return True if the queue has room; else the listener requests a read when it has taken the last
        one."""
        self.was_skipped = self.queue.full()
        return not self.was_skipped


class EventHub:
    """The event hub of one event loop; starts with the first listener, ends with `close`.

    redis_url: for the subscription. read: reads new events from the database. poll_seconds: period of reading
    all watched jobs without a subscription. check_seconds: the same with a subscription. silence_seconds:
    after so long without a message, the subscription is checked.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        read: Callable[[Mapping[str, int]], dict[str, NewEvents]] = read_new_events,
        poll_seconds: float = 1.5,
        check_seconds: float = 10.0,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._redis_url, self._silence_seconds = redis_url, silence_seconds
        self._read = read
        self._poll_seconds = poll_seconds
        self._check_seconds = check_seconds
        self._watches: dict[str, set[Watch]] = {}
        self._pulses: set[asyncio.Event] = set()
        self._dirty: set[str] = set()
        self._some_dirty = asyncio.Event()
        self._is_subscribed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="event-hub")

    @property
    def is_subscribed(self) -> bool:
        """True while announcements are received; otherwise the jobs are polled."""
        return self._is_subscribed

    @property
    def watched(self) -> int:
        """Number of listeners."""
        return sum(map(len, self._watches.values()))

    @asynccontextmanager
    async def watch(self, job_id: str, after: int = FROM_NOW_ON) -> AsyncIterator[Watch]:
        """Listen to a job's events after number `after`; existing ones are delivered at once."""
        self._start()
        watch = Watch(job_id, after, self._mark_dirty)
        self._watches.setdefault(job_id, set()).add(watch)
        self._mark_dirty([job_id])
        try:
            yield watch
        finally:
            others = self._watches[job_id]
            others.discard(watch)
            if not others:
                del self._watches[job_id]

    @asynccontextmanager
    async def pulses(self) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set whenever any job is announced; the waiting code clears it."""
        self._start()
        pulse = asyncio.Event()
        self._pulses.add(pulse)
        try:
            yield pulse
        finally:
            self._pulses.discard(pulse)

    async def read(self, call: Callable[[], Read]) -> Read:
        """Call a function that reads the database, in the hub's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _closing(call))

    async def wait_until_over(self, job_id: str, seconds: float) -> bool:
        """Return True once the job has ended or was deleted; False after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self.watch(job_id) as watch:
                while True:
                    news = await watch.events()
                    if news is None or news.is_over:
                        return True
        return False

    async def close(self) -> None:
        """Stop the tasks and close the thread's database connections."""
        tasks, self._tasks = self._tasks, []
        while running := [task for task in tasks if not task.done()]:
            for task in running:
                task.cancel()
            # before Python 3.12, `wait_for` (used by redis-py) can swallow the cancellation
            await asyncio.wait(running, timeout=0.1)
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(RuntimeError):
            await asyncio.get_running_loop().run_in_executor(self._thread, connections.close_all)
        self._thread.shutdown(wait=False)

    def _start(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(step()) for step in (self._listen, self._poll, self._deliver)]

    def _mark_dirty(self, job_ids: list[str] | None = None) -> None:
        """Schedule a read of these jobs; None: of all watched ones."""
        ids = list(self._watches) if job_ids is None else [i for i in job_ids if i in self._watches]
        if ids:
            self._dirty.update(ids)
            self._some_dirty.set()

    async def _listen(self) -> None:
        for turn in count():
            try:
                async with (
                    subscriber_client(self._redis_url, turn) as client,
                    client.pubsub(ignore_subscribe_messages=True) as pubsub,
                ):
                    await pubsub.subscribe(channel())
                    self._is_subscribed = True
                    self._mark_dirty()
                    await self._read_messages(pubsub)
            except (redis.RedisError, OSError, ValueError) as error:
                if self._is_subscribed:
                    log.warning("event_subscription_lost", error=str(error))
            finally:
                self._is_subscribed = False
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _read_messages(self, pubsub: Any) -> None:
        clock = asyncio.get_running_loop().time
        received_at, pinged = clock(), False
        while True:
            message = await pubsub.get_message(timeout=self._silence_seconds)
            if message is not None:
                received_at, pinged = clock(), False
                if message["type"] == "message":
                    self._mark_dirty(read_announcement(message["data"]))
                    for pulse in self._pulses:
                        pulse.set()
            elif clock() - received_at >= self._silence_seconds:  # sooner: the confirmation
                if pinged:
                    raise redis.TimeoutError("the subscription's server does not answer")
                await pubsub.ping()
                received_at, pinged = clock(), True

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            passed = self._poll_seconds
            while self._is_subscribed and passed < self._check_seconds:
                await asyncio.sleep(self._poll_seconds)
                passed += self._poll_seconds
            self._mark_dirty()

    async def _deliver(self) -> None:
        while True:
            await self._some_dirty.wait()
            self._some_dirty.clear()
            dirty, self._dirty = self._dirty, set()
            cursors = {
                job_id: min(watch.cursor for watch in ready)
                for job_id in dirty
                if (ready := [watch for watch in self._watches.get(job_id, ()) if watch.is_ready()])
            }
            ids = list(cursors)
            for start in range(0, len(ids), _CHUNK):
                chunk = {job_id: cursors[job_id] for job_id in ids[start : start + _CHUNK]}
                try:
                    news = await self.read(partial(self._read, chunk))
                except Exception as error:  # the database is unavailable: the next poll reads again
                    log.warning("events_not_read", jobs=len(chunk), error=str(error).strip())
                    continue
                for job_id, after in chunk.items():
                    found = news.get(job_id)
                    self._distribute(job_id, after, found)
                    if found is not None and found.has_more:
                        self._mark_dirty([job_id])

    def _distribute(self, job_id: str, read_after: int, news: NewEvents | None) -> None:
        """Put the events into the queues of the job's listeners. read_after: cursor of the read."""
        for watch in self._watches.get(job_id, ()):
            if watch.cursor < read_after:
                continue  # added during the read; its job is dirty again, so that it misses no event
            if not watch.is_ready():
                continue
            if news is None:
                watch.queue.put_nowait(None)
                continue
            events = tuple(event for event in news.events if event.seq > watch.cursor)
            if events or news.is_over:
                watch.queue.put_nowait(replace(news, after=watch.cursor, events=events))
            if events:
                watch.cursor = events[-1].seq
