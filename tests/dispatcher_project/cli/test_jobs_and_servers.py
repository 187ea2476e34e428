"""`jobs`, `cancel` and `servers`: lists with the API's filters and documents, and cancelling."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from foundation.ids import lowest_id
from gpus.health.pinned_servers import heartbeat_report
from gpus.models import AuditEntry, Server
from gpus.registry.audit import cli_actor
from jobs.domain.states import JobState
from jobs.models import Job, Tenant
from jobs.transitions import end_waiting
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Terminal

pytestmark = pytest.mark.django_db


def shown(said: str) -> list[str]:
    """The first words of a table's rows."""
    return [line.split()[0] for line in said.splitlines()[1:]]


def test_jobs_are_listed_the_newest_first_a_page_at_a_time(queue: QueueHarness, terminal: Terminal) -> None:
    assert terminal("jobs").said == "no job matches\n"
    first, second, third = (queue.job(push=False).id for _ in range(3))
    page = terminal("jobs", "--limit", "2").said
    assert shown(page)[:2] == [third, second]
    assert page.splitlines()[-1] == f"… older ones: --before {second}"
    assert shown(terminal("jobs", "--limit", "2", "--before", second.lower()).said) == [first]
    listed = terminal("jobs", "--json", "--limit", "2").json
    assert [job["job_id"] for job in listed["results"]] == [third, second]
    assert listed["before"] == second
    assert terminal("jobs", "--json").json["before"] is None


def test_jobs_are_filtered_as_by_the_api(queue: QueueHarness, terminal: Terminal) -> None:
    other = Tenant.objects.create(name="acme")
    now = queue.clock.now()
    long_ago = now - timedelta(hours=3)
    old = queue.job(push=False, id=lowest_id(long_ago.timestamp()), created_at=long_ago)
    tagged, of_acme = queue.job(push=False, tags=["nightly"]), queue.job(push=False, tenant=other, model="x")
    end_waiting(of_acme.id, JobState.FAILED, now, code="run_failed", message="exit code 1\nat line 2")
    for words, job in (
        ("--tag nightly", tagged),
        ("--tenant acme", of_acme),
        ("--model x", of_acme),
        ("--state failed", of_acme),
        ("--error-code run_failed", of_acme),
        ("--created-before 2h", old),
    ):
        assert shown(terminal("jobs", *words.split()).said) == [job.id], words
    assert shown(terminal("jobs", "--since", "2h").said) == [of_acme.id, tagged.id]
    [row] = terminal("jobs", "--state", "failed").said.splitlines()[1:]
    assert row.endswith("run_failed  exit code 1")


def test_a_list_reads_no_payload_and_makes_no_query_for_each_job(
    queue: QueueHarness, terminal: Terminal, django_assert_max_num_queries: pytest.FixtureDef[object]
) -> None:
    for _ in range(5):
        queue.job(push=False, payload={"prompt": "x" * 100})
    with django_assert_max_num_queries(2) as seen:  # type: ignore[operator]
        assert len(terminal("jobs", "--json").json["results"]) == 5
    assert not [query for query in seen.captured_queries if "payload" in query["sql"]]
    assert not [query for query in seen.captured_queries if "COUNT" in query["sql"]]


@pytest.mark.parametrize("words", ["", "--tenant acme", "--since 2h", "--tenant acme --state failed"])
def test_a_list_is_read_in_the_order_of_an_index(
    queue: QueueHarness,
    terminal: Terminal,
    django_assert_max_num_queries: pytest.FixtureDef[object],
    words: str,
) -> None:
    """A large table is neither counted nor sorted for a page of it."""
    Tenant.objects.create(name="acme")
    with django_assert_max_num_queries(3) as seen:  # type: ignore[operator]
        terminal("jobs", *words.split())
    [listing] = [query["sql"] for query in seen.captured_queries if "ORDER BY" in query["sql"]
                 and "jobs_job" in query["sql"]]  # fmt: skip
    assert "LIMIT 21" in listing
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {listing}")
        plan = str(cursor.fetchall())
    assert "TEMP B-TREE" not in plan, plan


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("jobs --tenant nobody", "no tenant is named nobody"),
        ("jobs --since yesterday", "'yesterday' is not a time"),
        ("jobs --model ", "has not 1 to 64 characters"),
        ("cancel", "give job ids, or a filter"),
        ("cancel X --model m", "give job ids, or a filter"),
        ("cancel --all", "Confirm with --yes"),
        ("servers nope", "no server is named nope"),
    ],
)
def test_wrong_arguments_are_one_line(queue: QueueHarness, terminal: Terminal, words: str, says: str) -> None:
    queue.job(push=False)
    run = terminal(*words.split(" "))
    assert run.status
    assert says in run.said
    assert Job.objects.get().state == "queued"


def test_jobs_are_cancelled_by_id_and_those_that_ended_are_reported(
    queue: QueueHarness, terminal: Terminal
) -> None:
    queue.server()
    running = queue.job()
    lease = queue.claim()
    assert lease.job_id == running.id
    waiting, ended = queue.job(), queue.job(push=False)
    end_waiting(ended.id, JobState.FAILED, queue.clock.now(), code="run_failed", message="no")
    run = terminal("cancel", waiting.id.lower(), running.id, ended.id, "NOPE")
    assert run.status == 1
    lines = run.said.splitlines()
    assert lines[0] == f"{waiting.id} cancelled"
    assert lines[1].startswith(f"{running.id} is being stopped: it ends once its GPU is proven free, at the")
    assert lines[2].startswith(f"{ended.id} not cancelled: ")
    assert lines[3] == "NOPE not cancelled: there is no such job"
    assert [entry.target for entry in AuditEntry.objects.filter(action="cancel_job").order_by("pk")] == [
        f"job:{waiting.id}",
        f"job:{running.id}",
    ]
    [again] = terminal("cancel", waiting.id, "--json").json["results"]
    assert (again["outcome"], again["error"]) == ("cancelled", None)


def test_jobs_are_cancelled_by_a_filter_after_a_count(queue: QueueHarness, terminal: Terminal) -> None:
    kept = queue.job(push=False)
    for _ in range(3):
        queue.job(push=False, tags=["nightly"])
    assert terminal("cancel", "--tag", "nightly", "--dry-run").said == "would cancel 3 jobs\n"
    assert terminal("cancel", "--tag", "nightly").status == 2
    assert Job.objects.filter(state="queued").count() == 4
    assert terminal("cancel", "--tag", "nightly", "--yes").said == "3 jobs cancelled or being stopped\n"
    assert list(Job.objects.filter(state="queued")) == [kept]
    assert terminal("cancel", "--tag", "nightly", "--yes").said == "no unfinished job matches\n"
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.detail["jobs"]) == ("cancel_jobs", cli_actor(), 3)


def test_servers_are_listed_with_what_is_wrong(queue: QueueHarness, terminal: Terminal) -> None:
    for name in ("gpu-1", "gpu-2", "other"):
        queue.server(name, slots=2)
    Server.objects.update(healthy=True)
    Server.objects.filter(name="gpu-2").update(
        healthy=False, last_error="connection refused", machine="box-2"
    )
    queue.job()
    queue.claim()
    table = terminal("servers").said.splitlines()
    assert [row.split()[0] for row in table[1:]] == ["gpu-1", "gpu-2", "other"]
    sick = table[2]
    assert "box-2" in sick
    assert "sick" in sick
    assert sick.endswith("fails its health check: connection refused")
    assert sum("1 of 2" in row for row in table) == 1
    assert shown(terminal("servers", "gpu-*").said) == ["gpu-1", "gpu-2"]
    assert shown(terminal("servers", "--problems").said) == ["gpu-2"]
    assert shown(terminal("servers", "--machine", "box-2").said) == ["gpu-2"]
    assert shown(terminal("servers", "--model", "m", "*r", "gpu-*").said) == ["gpu-1", "gpu-2", "other"]
    assert terminal("servers", "--pool", "nope").said == "no server matches\n"
    [one] = terminal("servers", "gpu-2", "--json").json["results"]
    assert (one["server"], one["desired"], one["observed"]["state"]) == ("gpu-2", "on", "on")
    assert one["problems"] == ["fails its health check: connection refused"]


def test_the_last_telemetry_of_named_servers_is_shown(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server("box")
    queue.server("http")
    Server.objects.filter(name="box").update(host="box.1")
    assert "no telemetry in the last 15 s" in terminal("servers", "box").said
    reading = {"warm": ["flux"], "gpu": {"utilisation": 87.0, "power": float("nan"), "temperature": 61}}
    queue.leases.record_heartbeat("box", heartbeat_report("box.1", [], telemetry=reading))
    assert terminal("servers", "box").said.splitlines()[-1] == (
        "box: GPU 87 %, Temperature 61 °C, Loaded flux (0 s ago)"
    )
    assert "only a worker on the GPU host" in terminal("servers", "http").said
    assert [row.split()[0] for row in terminal("servers", "*").said.splitlines()[1:]] == [
        "box", "http", "box:"
    ]  # fmt: skip
    boxed, plain = terminal("servers", "*", "--json").json["results"]
    assert (boxed["telemetry"]["gpu"]["utilisation"], plain["telemetry"]) == (87.0, None)
    queue.redis_is_gone = True
    assert "Redis does not answer" in terminal("servers", "box").said.splitlines()[-1]
    assert "box:" not in terminal("servers").said


def test_servers_are_listed_without_redis(queue: QueueHarness, terminal: Terminal) -> None:
    assert "no server is registered" in terminal("servers").said
    queue.server()
    Server.objects.update(healthy=True)
    queue.redis_is_gone = True
    [row] = terminal("servers").said.splitlines()[1:]
    assert row.endswith("Redis does not answer")
    assert "unknown" in row
