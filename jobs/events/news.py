"""What is new of some jobs: two queries, however many jobs and listeners there are, and a bounded answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from jobs.domain.disclosure import shown_event
from jobs.domain.states import JobState, is_final
from jobs.models import Event, Job

CARRY_OUTPUT = frozenset({"partial"})
"""Kinds of events with a part of a result in them."""
NEWS = frozenset({"progress", *CARRY_OUTPUT})
"""Kinds that runs tell of themselves, as often as they like within bounds: no moves of the job."""
MOST_EVENTS = 500
"""Of one read: such a part may have 64 KiB."""


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """seq: grows by one within a job."""

    seq: int
    type: str
    data: Mapping[str, Any]

    def as_sse(self, *, with_output: bool, in_full: bool) -> bytes:
        """One event of a `text/event-stream`. with_output: whether its reader may see results. in_full: and
        what only operators read (`jobs.domain.disclosure`)."""
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
