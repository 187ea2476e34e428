"""One task per process that turns announcements into news for any number of listeners.

An announcement marks a job dirty; the dirty ones are read together, in one thread, by two queries and with a
bounded answer, and the news handed to each listener. No listener polls. While Redis is away all watched jobs
are marked dirty every `poll_seconds`; while it is there, every `check_seconds`, because an announcement may
be lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import redis
import structlog
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

CARRY_OUTPUT = frozenset({"partial"})
"""Kinds of events with a part of a result in them."""
NEWS = frozenset({"progress", *CARRY_OUTPUT})
"""Kinds that runs tell of themselves, as often as they like within bounds: no moves of the job."""
MOST_EVENTS = 500
"""Of one read: such a part may have 64 KiB."""

_OPTIONS: dict[str, Any] = {"socket_connect_timeout": 2, "socket_timeout": 5}

FROM_NOW_ON = 2**62
"""A cursor beyond every event: the listener wants to know only that the job is over."""
_CHUNK = 500
_RECONNECT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """seq: grows by one within a job."""

    seq: int
    type: str
    data: Mapping[str, Any]

    def as_sse(self, *, with_output: bool, in_full: bool) -> bytes:
        """One event of a `text/event-stream`. with_output: whether its reader may see results. in_full: and
        what only operators read (`jobs.domain.access`)."""
        shown = shown_event(self.data, in_full=in_full)
        data = json.dumps(shown_data(self.type, shown, with_output=with_output))
        return f"id: {self.seq}\nevent: {self.type}\ndata: {data}\n\n".encode()


@dataclass(frozen=True, slots=True)
class NewEvents:
    """after: the events are those with a higher number. last_seq: the highest there is. has_more: they do not
    reach to it, another read has the rest."""

    job_id: str
    status: str
    last_seq: int
    after: int
    events: tuple[SeenEvent, ...]
    has_more: bool = False

    @property
    def is_over(self) -> bool:
        """Nothing follows these events."""
        return is_final(JobState(self.status)) and not self.has_more


def shown_data(kind: str, data: Mapping[str, Any], *, with_output: bool) -> Mapping[str, Any]:
    """An event's data as its reader may see it: what a run put out so far is as secret as its result."""
    if with_output or kind not in CARRY_OUTPUT:
        return data
    return {**data, "output": None, "output_hidden": True}


def read_new_events(cursors: Mapping[str, int]) -> dict[str, NewEvents]:
    """cursors: the last number seen, by job. A job that is gone is left out. At most MOST_EVENTS are read,
    the first of each job, and one at least of each."""
    heads = Job.objects.filter(id__in=list(cursors)).values_list("id", "state", "event_seq")
    found = {job_id: (state, last) for job_id, state, last in heads}
    moved: dict[int, list[str]] = {}
    for job_id, (_, last) in found.items():
        if last > cursors[job_id]:
            moved.setdefault(cursors[job_id], []).append(job_id)
    events: dict[str, list[SeenEvent]] = {}
    if moved:
        each = max(1, MOST_EVENTS // sum(map(len, moved.values())))
        # a range of numbers bounds the rows; it is empty only where refused attempts were removed
        wanted = [Q(job_id__in=ids, seq__gt=seen, seq__lte=seen + each) for seen, ids in moved.items()]
        for row in Event.objects.filter(Q(*wanted, _connector=Q.OR)).order_by("job_id", "seq"):
            events.setdefault(row.job_id, []).append(_seen(row))
        for seen, ids in moved.items():
            for job_id in ids:
                if job_id not in events:
                    events[job_id] = _after_gap(job_id, seen, each)
    return {
        job_id: _news(job_id, state, last, cursors[job_id], events.get(job_id, []))
        for job_id, (state, last) in found.items()
    }


def done_event(job_id: str, status: str) -> bytes:
    """The stream's last word. It has no id: a client that comes back still has the last real one."""
    data = json.dumps({"job_id": job_id, "status": status})
    return f"event: done\ndata: {data}\n\n".encode()


def _news(job_id: str, state: str, last: int, after: int, events: list[SeenEvent]) -> NewEvents:
    has_more = bool(events) and events[-1].seq < last
    return NewEvents(job_id, state, last, after, tuple(events), has_more)


def _after_gap(job_id: str, seen: int, most: int) -> list[SeenEvent]:
    return [_seen(row) for row in Event.objects.filter(job_id=job_id, seq__gt=seen).order_by("seq")[:most]]


def _seen(row: Event) -> SeenEvent:
    data = {"job_id": row.job_id, "seq": row.seq, "type": row.type, "at": row.at.isoformat(), **row.data}
    return SeenEvent(row.seq, row.type, data)


def subscriber_client(url: str, turn: int = 0) -> Redis:
    """An asyncio client that subscribes to announcements, for every kind of REDIS_URL.

    turn: counts up with each try, so that a cluster node that is gone is not asked for ever. Any node
    will do: PUBLISH reaches all of them. Raises ValueError for a URL it can't read."""
    parts = urlsplit(url)
    options = {**_OPTIONS, "retry": Retry(NoBackoff(), 0)}
    if parts.scheme == "redis+cluster":
        nodes = addresses(parts, 6379)
        host, port = nodes[turn % len(nodes)]
        return Redis(host=host, port=port, **credentials(parts), **options)
    if parts.scheme == "redis+sentinel":
        master = parts.path.strip("/").partition("/")[0]
        never = {"retry": options["retry"]}  # redis-py asks each Sentinel that is away ten times
        sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
            addresses(parts, 26379), sentinel_kwargs=_OPTIONS | never, **_OPTIONS
        )
        client: Redis = sentinel.master_for(master, **credentials(parts), **options)
        return client
    return Redis.from_url(url, **options)


@dataclass(slots=True, eq=False)
class Watch:
    """One listener. cursor: number of the last event it was given. It is given more when it has taken that:
    of one that is slower than its job no more than one read waits in memory."""

    job_id: str
    cursor: int
    read_on: Callable[[list[str]], None]
    passed_over: bool = False
    given: asyncio.Queue[NewEvents | None] = field(default_factory=lambda: asyncio.Queue(1))

    async def events(self) -> NewEvents | None:
        """None: the job is gone."""
        news = await self.given.get()
        if self.passed_over:
            self.passed_over = False
            self.read_on([self.job_id])
        return news

    def is_ready(self) -> bool:
        """Whether it can be given something; if not, it asks for it when it can."""
        self.passed_over = self.given.full()
        return not self.passed_over


class EventHub:
    """Belongs to one event loop; starts with the first listener, ends with `close`."""

    def __init__(
        self,
        redis_url: str,
        *,
        read: Callable[[Mapping[str, int]], dict[str, NewEvents]] = read_new_events,
        poll_seconds: float = 1.5,
        check_seconds: float = 10.0,
    ) -> None:
        self._redis_url = redis_url
        self._read = read
        self._poll_seconds = poll_seconds
        self._check_seconds = check_seconds
        self._watches: dict[str, set[Watch]] = {}
        self._pulses: set[asyncio.Event] = set()
        self._dirty: set[str] = set()
        self._some_dirty = asyncio.Event()
        self._hears = False
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="event-hub")

    @property
    def is_subscribed(self) -> bool:
        """Whether announcements arrive; else the jobs are polled."""
        return self._hears

    @property
    def watched(self) -> int:
        return sum(map(len, self._watches.values()))

    @asynccontextmanager
    async def watch(self, job_id: str, after: int = FROM_NOW_ON) -> AsyncIterator[Watch]:
        """News of this job from event `after` on; what there is already comes at once."""
        self._start()
        watch = Watch(job_id, after, self._mark)
        self._watches.setdefault(job_id, set()).add(watch)
        self._mark([job_id])
        try:
            yield watch
        finally:
            others = self._watches[job_id]
            others.discard(watch)
            if not others:
                del self._watches[job_id]

    @asynccontextmanager
    async def pulses(self) -> AsyncIterator[asyncio.Event]:
        """Set whenever some job was announced; who waits for it clears it."""
        self._start()
        pulse = asyncio.Event()
        self._pulses.add(pulse)
        try:
            yield pulse
        finally:
            self._pulses.discard(pulse)

    async def wait_until_over(self, job_id: str, seconds: float) -> bool:
        """True once the job is final (or gone); False after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self.watch(job_id) as watch:
                while True:
                    news = await watch.events()
                    if news is None or news.is_over:
                        return True
        return False

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        while running := [task for task in tasks if not task.done()]:
            for task in running:
                task.cancel()
            # before Python 3.12 `wait_for`, which redis-py sends by, may swallow it
            await asyncio.wait(running, timeout=0.1)
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(RuntimeError):
            await asyncio.get_running_loop().run_in_executor(self._thread, connections.close_all)
        self._thread.shutdown(wait=False)

    def _start(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(step()) for step in (self._listen, self._poll, self._deliver)]

    def _mark(self, job_ids: list[str] | None = None) -> None:
        """None: all that are watched."""
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
                    self._hears = True
                    self._mark()
                    await self._read_messages(pubsub)
            except (redis.RedisError, OSError, ValueError) as error:
                if self._hears:
                    log.warning("announcements_lost", error=str(error))
            finally:
                self._hears = False
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _read_messages(self, pubsub: Any) -> None:
        clock = asyncio.get_running_loop().time
        heard_at, pinged = clock(), False
        while True:
            message = await pubsub.get_message(timeout=SILENCE_SECONDS)
            if message is not None:
                heard_at, pinged = clock(), False
                if message["type"] == "message":
                    self._mark(read_announcement(message["data"]))
                    for pulse in self._pulses:
                        pulse.set()
            elif clock() - heard_at >= SILENCE_SECONDS:  # sooner: the subscription's own confirmation
                if pinged:
                    raise redis.TimeoutError("the subscription's server does not answer")
                await pubsub.ping()
                heard_at, pinged = clock(), True

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            passed = self._poll_seconds
            while self._hears and passed < self._check_seconds:
                await asyncio.sleep(self._poll_seconds)
                passed += self._poll_seconds
            self._mark()

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
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
                asked = {job_id: cursors[job_id] for job_id in ids[start : start + _CHUNK]}
                try:
                    news = await loop.run_in_executor(self._thread, self._read_and_close, asked)
                except Exception as error:  # the database is away: the next poll asks again
                    log.warning("news_not_read", jobs=len(asked), error=str(error).strip())
                    continue
                for job_id, after in asked.items():
                    found = news.get(job_id)
                    self._hand_out(job_id, after, found)
                    if found is not None and found.has_more:
                        self._mark([job_id])

    def _read_and_close(self, cursors: Mapping[str, int]) -> dict[str, NewEvents]:
        close_old_connections()
        try:
            return self._read(cursors)
        finally:
            close_old_connections()

    def _hand_out(self, job_id: str, asked_after: int, news: NewEvents | None) -> None:
        for watch in self._watches.get(job_id, ()):
            if watch.cursor < asked_after:
                continue  # it came while this was read, and is dirty again: it must not miss events
            if not watch.is_ready():
                continue
            if news is None:
                watch.given.put_nowait(None)
                continue
            events = tuple(event for event in news.events if event.seq > watch.cursor)
            if events or news.is_over:
                watch.given.put_nowait(replace(news, after=watch.cursor, events=events))
            if events:
                watch.cursor = events[-1].seq
