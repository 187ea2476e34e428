from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.events.hub import NewEvents, read_new_events
from jobs.models import Job
from tests.support.announced_jobs import end_job, new_job, say
from tests.support.api_harness import Account, account, make_model

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant(db: None) -> Account:
    """These tests have no other process: a transaction that is rolled back is enough."""
    make_model("zimg")
    return account("acme")


def seqs(new: NewEvents) -> list[int]:
    return [event.seq for event in new.events]


def busy_job(tenant: Account, words: int) -> Job:
    job = new_job(tenant.tenant)  # its event 1
    say(job.id, *["word"] * words)
    return job


@pytest.mark.database
def test_only_events_that_a_listener_lacks_are_read(tenant: Account) -> None:
    old, other, new = busy_job(tenant, 20), busy_job(tenant, 4), new_job(tenant.tenant)
    with CaptureQueriesContext(connection) as queries:
        news = read_new_events({old.id: 20, other.id: 5, new.id: 0, "0" * 26: 0})
    assert {job_id: seqs(one) for job_id, one in news.items()} == {old.id: [21], other.id: [], new.id: [1]}
    assert len(queries) == 2
    with connection.cursor() as cursor:
        cursor.execute(queries[1]["sql"])
        assert len(cursor.fetchall()) == 2, "a new listener of one job reads no events of the others"


def test_a_read_is_bounded_and_the_rest_follows(tenant: Account) -> None:
    long, short = busy_job(tenant, 7), busy_job(tenant, 1)
    end_job(long.id, announce=False)
    cursors, read, reads = {long.id: 0, short.id: 0}, 0, []
    while True:
        news = read_new_events(cursors, 10)
        reads.append([seqs(news[long.id]), seqs(news[short.id])])
        assert news[long.id].has_more is not news[long.id].is_over
        if news[long.id].is_over:
            break
        cursors = {job_id: one.events[-1].seq if one.events else one.after for job_id, one in news.items()}
        read += 1
        assert read < 9
    assert reads == [[[1, 2, 3, 4, 5], [1, 2]], [[6, 7, 8, 9], []]]


def test_each_of_very_many_jobs_gets_one_event(tenant: Account) -> None:
    news = read_new_events(dict.fromkeys((busy_job(tenant, 2).id for _ in range(3)), 0), 2)
    assert [seqs(one) for one in news.values()] == [[1]] * 3
    assert all(one.has_more for one in news.values())
