"""The event stream of a run: its own events and those of all its jobs, in one stream that can be continued.

The run's events are numbered in the order of their commits. Jobs number their events too, each for itself,
and a run may have 100,000 of them: the stream reads those by the id of the row, in ranges. Ids are given
before the commit, so a lower one may become visible after a higher one; therefore ranges are read again until
`SETTLE_SECONDS` have passed. A stream sends each event once; after a reconnect the jobs' events of these
seconds come again, and `job_id` with `seq` identifies them.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import structlog
from django.conf import settings

from jobs.domain.access import shown_event
from jobs.events.handover import Follow
from jobs.events.hub import EventHub, NewEvents, SeenEvent, shown_data
from jobs.models import Event
from workflows.domain.states import RunState
from workflows.models import Node, Run, RunEvent, follower_of

log = structlog.get_logger()

PLACE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?\Z")
"""Form of the id of an event: number of the run's last event, and id of a row of `Event`."""
MAX_EVENTS = 500
"""Events of one read."""
RANGE = 20_000
"""Ids of jobs' events, of all runs, that one read covers."""
SETTLE_SECONDS = 10.0
"""A transaction that writes events is over sooner."""
REST_SECONDS = 0.5
"""Least time between two reads of a stream that has sent all."""
QUIET_SECONDS = 2.0
"""Time after which a stream reads without an announcement."""
AFTER_END = timedelta(minutes=1)
"""Events of a run's jobs are not written later after its end, by another clock."""


class Place(NamedTuple):
    """Where a stream is. seq: number of the run's last event that was sent. low: all events of jobs up to
    this id were sent; 0: begin with the run's first job."""

    seq: int = 0
    low: int = 0

    @classmethod
    def of(cls, text: str) -> Place:
        """Read the id of an event. It matches `PLACE`."""
        seq, _, low = text.partition(".")
        return cls(int(seq), int(low or 0))

    def __str__(self) -> str:
        return f"{self.seq}.{self.low}"


@dataclass(frozen=True, slots=True)
class RunStreamEvent(SeenEvent):
    """An event of a run, or of one of its jobs. place: as the id of the event in the stream. node: key of the
    job's node; empty for an event of the run itself."""

    place: Place
    node: str = ""

    @property
    def sse_id(self) -> str:
        return str(self.place)

    def as_sse(self, *, with_output: bool, in_full: bool, streams: frozenset[str] = frozenset()) -> bytes:
        """Return the event in the format of a `text/event-stream`, with what the reader may see."""
        if not self.node:
            return self.written(self.type, shown_run_event(self.data, in_full=in_full))
        tenant_errors = settings.DISPATCHER.tenant_errors
        shown = shown_event(self.data, in_full=in_full, streams=streams, tenant_errors=tenant_errors)
        shown = shown_data(self.type, shown, with_output=with_output)
        return self.written(f"job_{self.type}", {**shown, "node": self.node})


@dataclass(frozen=True, slots=True)
class RunNews(NewEvents):
    """New events of a run, in place of a job."""

    @property
    def is_over(self) -> bool:
        return self.status != RunState.RUNNING and not self.has_more


@dataclass
class RunReader:
    """Reads a run's stream piece by piece.

    sent: ids above `place.low` of jobs' events that were sent. seen: times (monotonic seconds) and the
    highest id of an event at that time. has_begun: the run's first job is known, so `place.low` counts, also
    if it is 0: in a new database. most_events, range_of_ids: bounds of one read.
    """

    run_id: str
    place: Place
    sent: set[int] = field(default_factory=set)
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    has_begun: bool = False
    most_events: int = MAX_EVENTS
    range_of_ids: int = RANGE

    def __post_init__(self) -> None:
        self.has_begun = self.place.low > 0

    def read(self, now: float) -> RunNews | None:
        """Return what is new; None if the run was deleted. now: monotonic seconds.

        Three to five queries, each bounded: at most `most_events` events, of `range_of_ids` ids.
        """
        run = Run.objects.only("state", "event_seq", "finished_at").filter(id=self.run_id).first()
        if run is None:
            return None
        after = self.place.seq
        own = list(RunEvent.objects.filter(run=run, seq__gt=after).order_by("seq")[: self.most_events])
        last = Event.objects.order_by("-id").values_list("id", flat=True).first() or 0
        of_jobs, upper = self._of_jobs(last)
        is_behind = upper < last and not self._is_past(run, upper, of_jobs)
        seq = own[-1].seq if own else after
        events = self._merged(own, of_jobs)
        self._settle(now, upper, last)
        has_more = is_behind or seq < run.event_seq
        return RunNews(self.run_id, run.state, run.event_seq, after, tuple(events), has_more)

    def _of_jobs(self, last: int) -> tuple[list[Event], int]:
        """Return events of the run's jobs that were not sent, and the id up to which these are all."""
        if not self.has_begun:
            first = _first_event(self.run_id)
            if first is None:
                return [], last
            self.place, self.has_begun = self.place._replace(low=first - 1), True
        upper = min(self.place.low + self.range_of_ids, last)
        found = Event.objects.filter(
            id__gt=self.place.low, id__lte=upper, job__followed_by=follower_of(self.run_id)
        )
        rows = list(found.order_by("id")[: self.most_events + len(self.sent)])
        if len(rows) == self.most_events + len(self.sent):
            upper = rows[-1].id
        return [row for row in rows if row.id not in self.sent], upper

    def _is_past(self, run: Run, upper: int, found: list[Event]) -> bool:
        """Return True if the events after this id were written after the run's end."""
        if run.finished_at is None or found:
            return False
        following = Event.objects.filter(id__gt=upper).order_by("id").values_list("at", flat=True).first()
        return following is not None and following > run.finished_at + AFTER_END

    def _merged(self, own: list[RunEvent], of_jobs: list[Event]) -> list[RunStreamEvent]:
        """Return the events in order of time; those of the run stay in the order of their numbers."""
        merged, waiting = list[RunStreamEvent](), deque(of_jobs)
        of = {event.job_id for event in of_jobs}
        nodes = dict(Node.objects.filter(job_id__in=of).values_list("job_id", "key")) if of else {}
        for event in own:
            while waiting and waiting[0].at < event.at:
                merged.append(self._of_job(waiting.popleft(), nodes))
            self.place = self.place._replace(seq=event.seq)
            data = {"run_id": self.run_id, "seq": event.seq, "type": event.type, "at": event.at.isoformat()}
            merged.append(RunStreamEvent(event.seq, event.type, {**data, **event.data}, self.place))
        return [*merged, *(self._of_job(event, nodes) for event in waiting)]

    def _of_job(self, event: Event, nodes: Mapping[str | None, str]) -> RunStreamEvent:
        self.sent.add(event.id)
        data = {"job_id": event.job_id, "seq": event.seq, "type": event.type, "at": event.at.isoformat()}
        node = nodes.get(event.job_id, "?")
        return RunStreamEvent(event.seq, event.type, {**data, **event.data}, self.place, node)

    def _settle(self, now: float, upper: int, last: int) -> None:
        """Move `place.low` to what no running transaction can add to. Ids far below the highest one are
        settled at once: so many are not given in a few seconds."""
        if not self.seen or self.seen[-1][1] != last:
            self.seen.append((now, last))
        settled = self.seen[0][1] - self.range_of_ids
        while self.seen and self.seen[0][0] <= now - SETTLE_SECONDS:
            settled = self.seen[0][1]
            if len(self.seen) == 1:
                break
            self.seen.popleft()
        low = max(self.place.low, min(upper, settled)) if self.has_begun else 0
        if low != self.place.low:
            self.place = self.place._replace(low=low)
            self.sent = {one for one in self.sent if one > low}


def _first_event(run_id: str) -> int | None:
    """Return the id of the first event of the run's jobs; None if it has no job yet. The jobs of one step
    have consecutive ids, in any order."""
    nodes = Node.objects.filter(run=run_id).exclude(job_id=None).order_by("id")
    job_ids = list(nodes.values_list("job_id", flat=True)[:MAX_EVENTS])
    events = Event.objects.filter(job_id__in=job_ids, seq=1).order_by("id")
    return events.values_list("id", flat=True).first()


def shown_run_event(data: Mapping[str, Any], *, in_full: bool) -> Mapping[str, Any]:
    """Return the data of a run's event. Only operators see the text of a node's error, which may come from a
    GPU server; the list of nodes has one for each reader."""
    return data if in_full else {name: value for name, value in data.items() if name != "detail"}


@dataclass
class RunWatch:
    """A stream of a run: reads when something was announced, not more often than every `REST_SECONDS`."""

    hub: EventHub
    reader: RunReader
    pulse: asyncio.Event
    has_more: bool = True

    async def events(self) -> NewEvents | None:
        """Wait for new events; None if the run was deleted."""
        clock = asyncio.get_running_loop().time
        while True:
            if not self.has_more:
                await asyncio.sleep(REST_SECONDS)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.pulse.wait(), QUIET_SECONDS)
            self.pulse.clear()
            try:
                news = await self.hub.read(lambda: self.reader.read(clock()))
            except Exception as error:  # the database is unavailable
                log.warning("run_events_not_read", run_id=self.reader.run_id, error=str(error).strip())
                self.has_more = False
                continue
            self.has_more = news is not None and news.has_more
            if news is None or news.events or news.is_over:
                return news


@asynccontextmanager
async def follow_run(hub: EventHub, follow: Follow) -> AsyncIterator[RunWatch]:
    """Open the stream of a run. For `jobs.events.stream.stream_events`."""
    async with hub.pulses() as pulse:
        yield RunWatch(hub, RunReader(follow.job_id, Place.of(follow.place)), pulse)
