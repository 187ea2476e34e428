"""The event stream of a run: complete, continued without a loss, and bounded reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import requests
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from jobs.models import Event, Job
from jobs.operations.tenants import create_key
from tests.support.announced_jobs import new_job, read_stream
from tests.support.factories import make_tenant
from tests.support.servers.web import Web, running_web
from tests.workflows.workflow_harness import WorkflowHarness, model
from workflows import event_stream
from workflows.event_stream import PLACE, Place, RunReader, RunStreamEvent
from workflows.models import Node, Run
from workflows.operations.answers import answer_wait

pytestmark = pytest.mark.django_db(transaction=True)
MAP = {"nodes": {"a": {**model(), "map": {"count": 4}}, "b": model(needs=["a"])}}


@dataclass
class Reader:
    """Reads a run's stream as a client does: it keeps the id of the last event."""

    run: Run
    last_id: str = "0"
    now: float = 0.0

    def connect(self) -> RunReader:
        return RunReader(self.run.id, Place.of(self.last_id))

    def read(self, reader: RunReader) -> list[RunStreamEvent]:
        found: list[RunStreamEvent] = []
        while (news := reader.read(self.now)) is not None:
            found += news.events  # type: ignore[arg-type]
            if not news.has_more:
                break
        if found:
            self.last_id = found[-1].sse_id
        return found


def names(events: list[RunStreamEvent]) -> list[tuple[str, str, int]]:
    return [(event.node, event.type, event.seq) for event in events]


def all_of(run: Run) -> set[tuple[str, str, int]]:
    keys = dict(Node.objects.filter(run=run).values_list("job_id", "key"))
    of_jobs = Event.objects.filter(job_id__in=[key for key in keys if key])
    return {("", event.type, event.seq) for event in run.events.all()} | {
        (keys[event.job_id], event.type, event.seq) for event in of_jobs
    }


def test_a_stream_has_the_events_of_the_run_and_of_all_its_jobs(harness: WorkflowHarness) -> None:
    unrelated_job = new_job(harness.tenant)
    run = harness.to_end(harness.start(MAP))
    reader = Reader(run)
    events = reader.read(reader.connect())
    assert set(names(events)) == all_of(run)
    assert len(events) == len(all_of(run))
    assert all(PLACE.match(event.sse_id) for event in events)
    assert names(events)[0] == ("", "started", 1)
    assert names(events)[-1] == ("", "completed", run.event_seq)
    assert not any(event.data.get("job_id") == unrelated_job.id for event in events)


def test_a_stream_goes_on_after_any_of_its_events(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start(MAP))
    events = Reader(run).read(Reader(run).connect())
    for number, event in enumerate(events):
        rest = Reader(run, event.sse_id).read(RunReader(run.id, Place.of(event.sse_id)))
        missed = set(names(events)[number + 1 :]) - set(names(rest))
        assert not missed, f"after {event.sse_id}"
        repeated = {one for one in names(rest) if not one[0]} & {
            one for one in names(events)[: number + 1] if not one[0]
        }
        assert not repeated, "the run's own events come once"


def test_an_event_with_a_lower_id_that_is_committed_later_is_sent(harness: WorkflowHarness) -> None:
    """On PostgreSQL ids are given before the commit."""
    run = harness.to_end(harness.start(MAP))
    first = Node.objects.filter(run=run).exclude(job_id=None).order_by("id")[0].job_id
    late = Event.objects.filter(job_id=first, type="completed").get()
    number = late.pk
    late.delete()
    late.pk = number
    reader = Reader(run)
    connected = reader.connect()
    before = names(reader.read(connected))
    reader.now += 3.0
    late.save(force_insert=True)  # its transaction ends only now
    after = names(reader.read(connected))
    assert [kind for _, kind, _ in after] == ["completed"]
    assert len(before) + len(after) == len(all_of(run))
    assert set(names(Reader(run, reader.last_id).read(reader.connect()))) >= set(after)


def test_each_read_is_bounded_however_large_the_run(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start(MAP))
    reader = Reader(run)
    connected = replace(reader.connect(), most_events=3, range_of_ids=5)
    sizes, queries, found = [], [], list[RunStreamEvent]()
    while True:
        with CaptureQueriesContext(connection) as captured:
            news = connected.read(reader.now)
        assert news is not None
        reader.now += 20.0
        sizes.append(len(news.events))
        queries.append(len(captured))
        found += news.events  # type: ignore[arg-type]
        if not news.has_more:
            break
    assert max(sizes) <= 6, "three of the run, and three of jobs"
    assert max(queries) <= 7
    assert set(names(found)) == all_of(run)
    assert len(found) == len(all_of(run))


def test_the_stream_of_an_old_run_ends_without_reading_all_later_events(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start(MAP))
    later = new_job(harness.tenant)
    Event.objects.filter(job=later).update(at=run.finished_at + 2 * event_stream.AFTER_END)  # type: ignore[operator]
    own = Event.objects.filter(job__followed_by__isnull=False).count()
    reader = RunReader(run.id, Place(), range_of_ids=own + 1)
    first, second = reader.read(0.0), reader.read(1.0)
    assert first is not None
    assert second is not None
    assert second.is_over


def test_a_reader_sees_only_what_it_may_see(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start({"nodes": {"a": model(payload={"fault": "fail"})}}))
    events = Reader(run).read(Reader(run).connect())
    message = Job.objects.get().error_message
    written = b"".join(event.as_sse(with_output=False, in_full=False) for event in events).decode()
    assert message not in written
    assert message in b"".join(event.as_sse(with_output=True, in_full=True) for event in events).decode()
    assert "event: job_failed" in written


@pytest.fixture
def streamed(valkey: EmbeddedValkey, settings: Any) -> Iterator[Web]:
    settings.REDIS_URL = valkey.url
    with running_web() as web:
        yield web


def follow(web: Web, key: str, run: Run, **headers: str) -> requests.Response:
    return requests.get(
        f"{web.url}/api/v1/runs/{run.id}/events",
        headers={"Authorization": f"Bearer {key}", "Accept": "text/event-stream", **headers},
        stream=True,
        timeout=60,
    )


@pytest.mark.database
def test_a_client_follows_a_run_to_its_end_and_reconnects(harness: WorkflowHarness, streamed: Web) -> None:
    _, key = create_key(harness.tenant)
    run = harness.start(
        {"nodes": {"best": {"human": {"title": "?", "choose_from": [1]}}, "b": model(needs=["best"])}}
    )
    harness.advance(run)
    lines = follow(streamed, key, run).iter_lines(decode_unicode=True, chunk_size=1)
    while next(lines) != "event: node_started":
        pass
    answer_wait(run, "best", 1, by="me", ports=harness.ports)
    harness.to_end(run)
    events = read_stream(lines)
    kinds = [event["event"] for event in events]
    assert kinds[-2:] == ["completed", "done"]
    assert {"node_ended", "job_queued", "job_started", "job_completed"} <= set(kinds)
    assert json.loads(events[-1]["data"]) == {"run_id": run.id, "status": "completed"}
    again = follow(streamed, key, run, **{"Last-Event-ID": events[-2]["id"]})
    rest = read_stream(again.iter_lines(decode_unicode=True, chunk_size=1))
    assert [event["event"] for event in rest if not event["event"].startswith("job_")] == ["done"]
    other_key = create_key(make_tenant("other"))[1]
    assert follow(streamed, other_key, run).status_code == 404
    assert follow(streamed, key, run, **{"Last-Event-ID": "x"}).status_code == 400


@pytest.mark.database
def test_a_stream_goes_on_after_the_first_event_of_a_new_database(harness: WorkflowHarness) -> None:
    run = harness.to_end(harness.start(MAP))
    first = Event.objects.order_by("id").values_list("id", flat=True)[0]
    with connection.cursor() as cursor:
        for event_id in Event.objects.order_by("id").values_list("id", flat=True):
            cursor.execute("UPDATE jobs_event SET id = %s WHERE id = %s", [event_id - first + 1, event_id])
    stream, found = RunReader(run.id, Place(), range_of_ids=5), set[tuple[str, str, int]]()
    for second in range(30):
        news = stream.read(float(second))
        assert news is not None
        found |= set(names(list(news.events)))  # type: ignore[arg-type]
    assert found == all_of(run)
    assert not news.has_more
