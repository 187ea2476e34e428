"""The calls that return typed answers, `run` and `list`; the two clients have the same methods."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest

import dispatcher_client
from dispatcher_client import (
    AnswerTooLarge,
    AsyncClient,
    Client,
    Job,
    JobFailed,
    NoAnswer,
    NotOver,
    Problem,
    UsageRow,
)
from dispatcher_client.answers import Page, Usage, read_page
from dispatcher_client.reading import read_answer
from tests.dispatcher_client.scripted import (
    Asked,
    Handler,
    Scripted,
    behave,
    drop,
    hang,
    problem,
    says,
    streams,
)
from tests.support.new_client import NewClient

JOB = "01J00000000000000000000000"
REASON = {
    "code": "model_paused",
    "message": "Paused.",
    "change": "Wait.",
    "evidence": {"by": "ops"},
    "new": 1,
}
ESTIMATE = {
    "reasons": [REASON],
    "position": 4,
    "starts_in": {"p50_seconds": 1, "p90_seconds": 6.5, "seen": 9},
    "of a newer server": [1],
}
ROW = {"key": "2026-02-01", "completed": 3, "failed": 1, "cancelled": 0, "gpu_seconds": 12}
USAGE = {"tenant": "acme", "from": "2026-02-01", "to": "2026-02-02", "by": "day", "rows": [ROW], "total": ROW}
ME = {
    "tenant": "acme",
    "key": {"prefix": "abc", "name": "laptop", "kind": "client", "expires_at": None},
    "scopes": ["submit", "read"],
    "models": [
        {
            "model": "flux",
            "payload_schema": None,
            "result_schema": {"type": "object"},
            "paused": False,
            "typical_run_seconds": 2.5,
        }
    ],
    "limits": {"max_running": 4, "max_queued": 100},
    "used": {"running": 1, "waiting": 2, "gpu_seconds_today": 7.25, "submits_left": None},
    "day_ends_at": "2026-02-02T00:00:00Z",
}


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods() -> None:
    blocking, asynchronous = public(Client), public(AsyncClient)
    own = {"close", "send"}  # `send` is what the calls are made of
    assert blocking.keys() == asynchronous.keys() - own
    for name, signature in blocking.items():
        assert signature.parameters == asynchronous[name].parameters, name
    made = [inspect.signature(kind).parameters for kind in (Client, AsyncClient)]
    assert made[0] == made[1]


def test_run_returns_the_result(server: Scripted, client: Client) -> None:
    server.status = "completed"
    assert client.run("flux", {"n": 1}, timeout_seconds=60, priority=2) == {"n": 1}
    submit, poll = server.asked
    assert submit.body == {"model": "flux", "payload": {"n": 1}, "priority": 2}
    assert poll.path.startswith("/queue/jobs/JOB0?wait=")


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_run_raises_the_error_of_the_job(server: Scripted, client: Client, status: str) -> None:
    error = {"code": "gpu_out_of_memory", "message": "16 GB were not enough"}
    server.will(behave, says(200, {"job_id": "JOB0", "status": status, "error": error}))
    with pytest.raises(JobFailed, match=r"JOB0.*gpu_out_of_memory: 16 GB") as raised:
        client.run("flux", {})
    assert (raised.value.code, raised.value.message) == ("gpu_out_of_memory", "16 GB were not enough")
    assert raised.value.job.status == status


def test_run_ends_when_its_time_is_up(server: Scripted, client: Client) -> None:
    server.status = "running"
    with pytest.raises(NotOver) as raised:
        client.run("flux", {}, timeout_seconds=0)
    assert raised.value.job.job_id == "JOB0"


def jobs_page(*job_ids: str, following: str | None = None) -> Any:
    rows = [{"job_id": job_id, "status": "queued", "model": "flux"} for job_id in job_ids]
    return says(200, {"results": rows, "next": following, "previous": None})


def test_list_follows_the_pages(server: Scripted, client: Client) -> None:
    server.will(
        jobs_page("C", "B", following="http://other.example/api/v1/queue/jobs?cursor=a%2Bb%3D&limit=2"),
        drop,
        problem(503, "database_unavailable", retryable=True),
        jobs_page("A"),
    )
    after = datetime(2026, 2, 1, tzinfo=UTC)
    jobs = client.list(tag="a&b", created_after=after, page_size=2, model=None)
    assert [(job.job_id, job.model) for job in jobs] == [("C", "flux"), ("B", "flux"), ("A", "flux")]
    first = "/queue/jobs?tag=a%26b&created_after=2026-02-01T00%3A00%3A00%2B00%3A00&limit=2"
    assert [asked.path for asked in server.asked] == [first, *[f"{first}&cursor=a%2Bb%3D"] * 3]


def test_list_asks_for_a_page_only_when_it_is_needed(server: Scripted, client: Client) -> None:
    server.will(jobs_page("B", following="?cursor=x"))
    assert next(iter(client.list())).job_id == "B"
    assert len(server.asked) == 1


def test_list_rejects_invalid_filters(server: Scripted, client: Client) -> None:
    with pytest.raises(TypeError, match="a list has no state"):
        list(client.list(state="queued"))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="created_before needs a zone"):
        list(client.list(created_before=datetime(2026, 2, 1)))
    assert server.asked == []


@pytest.mark.parametrize(
    "page",
    [
        {"results": {}},
        {"results": [], "next": 7},
        {"results": [], "next": "http://["},
        {"results": [], "next": "/queue/jobs?cursor="},
        {"results": [1], "next": None},
    ],
)
def test_a_page_that_is_none_is_no_answer(page: Mapping[str, Any]) -> None:
    with pytest.raises(NoAnswer):
        read_page(page)
    assert read_page({"results": []}) == Page((), None)


def test_explain_and_estimate_have_reasons(server: Scripted, client: Client) -> None:
    server.will(drop, says(200, {**ESTIMATE, "job_id": JOB, "status": "queued"}), says(200, ESTIMATE))
    found = client.explain(JOB)
    assert (found.job_id, found.status, found.position) == (JOB, "queued", 4)
    assert (found.reasons[0].code, found.reasons[0].evidence) == ("model_paused", {"by": "ops"})
    assert found.starts_in is not None
    assert (found.starts_in.p50_seconds, type(found.starts_in.p50_seconds)) == (1.0, float)
    estimate = client.estimate("flux", {"n": 1}, run_at=datetime(2026, 2, 1, tzinfo=UTC), idempotency_key="k")
    assert (estimate.reasons, estimate.starts_in) == (found.reasons, found.starts_in)
    assert [asked.path for asked in server.asked[1:]] == [f"/queue/jobs/{JOB}/explain", "/queue/estimate"]
    assert server.asked[2].body == {
        "model": "flux",
        "payload": {"n": 1},
        "run_at": "2026-02-01T00:00:00+00:00",
    }
    assert "idempotency-key" not in server.asked[2].headers


def test_me_returns_models_and_limits(server: Scripted, client: Client) -> None:
    server.will(says(200, ME))
    me = client.me()
    assert (me.tenant, me.key.prefix, me.scopes, me.models[0].model) == (
        "acme",
        "abc",
        ("submit", "read"),
        "flux",
    )
    assert (me.limits.max_running, me.limits.daily_gpu_seconds) == (4, None)
    assert me.used.gpu_seconds_today == 7.25
    assert me.day_ends_at == datetime(2026, 2, 2, tzinfo=UTC)


def test_usage_has_rows_and_a_total(server: Scripted, client: Client) -> None:
    server.will(says(200, USAGE), says(200, {**USAGE, "by": "tag", "total": None}))
    usage = client.usage(date(2026, 2, 1), "2026-02-02")
    assert (usage.first, usage.last) == (date(2026, 2, 1), date(2026, 2, 2))
    assert usage.rows == (UsageRow("2026-02-01", 3, 1, 0, 12.0),)
    assert usage.total == usage.rows[0]
    assert client.usage(by="tag").total is None
    assert [asked.path for asked in server.asked] == [
        "/usage?from=2026-02-01&to=2026-02-02&by=day",
        "/usage?by=tag",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"from": "yesterday"},
        {"rows": None},
        {"rows": [{**ROW, "completed": True}]},
        {"rows": [{**ROW, "gpu_seconds": 10**400}]},
        {"total": []},
        {"tenant": None},
    ],
)
def test_an_answer_of_the_wrong_type_is_retried(
    server: Scripted, client: Client, wrong: Mapping[str, Any]
) -> None:
    with pytest.raises(NoAnswer, match="not Usage"):
        read_answer(Usage, {**USAGE, **wrong})
    server.will(says(200, {**USAGE, **wrong}), says(200, USAGE))
    assert client.usage().tenant == "acme"
    assert len(server.asked) == 2


def test_typed_answers_can_not_be_changed() -> None:
    kinds = [getattr(dispatcher_client, name) for name in dispatcher_client.__all__]
    typed = [kind for kind in kinds if is_dataclass(kind)]
    assert {Job, Usage} <= set(typed)
    for kind in typed:
        assert kind.__dataclass_params__.frozen, kind  # type: ignore[union-attr]
        assert fields(kind)


# -- bounds and ends -----------------------------------------------------------------------------------


def test_a_longer_answer_than_allowed_is_not_read_to_its_end(
    server: Scripted, new_client: NewClient, over: threading.Event
) -> None:
    def endless(handler: Handler, asked: Asked) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not over.is_set():
            handler.wfile.write(b" " * 65536)

    client = new_client(server.url, "k", max_answer_bytes=300_000)
    server.will(endless)
    with pytest.raises(AnswerTooLarge, match="300000 bytes"):
        client.get(JOB)
    server.will(streams(b"id: 1\ndata: 1\n\n", *[b"data: " + b"x" * 99_990 + b"\n"] * 4))
    events = client.stream(JOB)
    assert next(events).id == "1"
    with pytest.raises(AnswerTooLarge):
        next(events)
    server.will(streams(*[b": " + b"x" * 99_990 + b"\n\n"] * 4, b"event: done\ndata: 1\n\n"))
    assert [event.type for event in client.stream(JOB)] == ["done"], "comments are no event"
    assert len(server.asked) == 3


def test_a_stream_that_is_left_closes_its_connection(server: Scripted) -> None:
    left = threading.Event()

    def watched(handler: Handler, asked: Asked) -> None:
        streams(b"id: 1\ndata: 1\n\n")(handler, asked)
        handler.rfile.read(1)  # returns at the end of the connection
        left.set()

    server.will(watched)
    for event in Client(server.url, "k").stream(JOB):
        assert event.id == "1"
        break
    assert left.wait(20)


def test_a_call_that_is_cancelled_ends_at_once(server: Scripted, over: threading.Event) -> None:
    pytest.importorskip("httpx", reason="httpx comes with the extra `dev`")

    server.will(hang(over))

    async def trial() -> None:
        async with AsyncClient(server.url, "k") as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.wait(JOB)
            assert (await client.get(JOB)).status == "queued"

    asyncio.run(trial())


def test_calls_run_side_by_side(server: Scripted, over: threading.Event) -> None:
    """One that hangs holds up no other, and many wait at once."""
    pytest.importorskip("httpx", reason="httpx comes with the extra `dev`")

    count = 120  # more than httpx's own default of connections
    gate = threading.Barrier(count)

    def together(handler: Handler, asked: Asked) -> None:
        gate.wait(60)
        behave(handler, asked)

    server.will(*[together] * count)

    async def trial() -> list[Job]:
        async with AsyncClient(server.url, "k", timeout_seconds=90) as client:
            return await asyncio.gather(*(client.get(f"J{number}") for number in range(count)))

    assert [job.job_id for job in asyncio.run(trial())] == [f"J{number}" for number in range(count)]


def test_a_flush_that_is_cancelled_keeps_what_it_did_not_send(
    server: Scripted, nowhere: str, over: threading.Event, spool: Any
) -> None:
    pytest.importorskip("httpx", reason="httpx comes with the extra `dev`")

    for number in range(3):
        with pytest.raises(dispatcher_client.Spooled):
            Client(nowhere, "k", spool=spool, retry_seconds=0).submit("flux", {"n": number})
    asked, go = threading.Event(), threading.Event()

    def slow(handler: Handler, request: Asked) -> None:
        asked.set()
        go.wait(30)
        behave(handler, request)

    server.will(slow)

    async def trial() -> None:
        async with AsyncClient(server.url, "k", spool=spool, retry_seconds=0) as client:
            flushing = asyncio.create_task(client.flush_spool())
            await asyncio.to_thread(asked.wait, 20)
            flushing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await flushing
            go.set()
            left = await client.flush_spool()  # waits until the other one lets the spool go
            assert left.left == 0

    asyncio.run(trial())
    assert len(server.jobs) == 3
    assert not spool.exists()


def test_without_httpx_the_error_names_it(monkeypatch: pytest.MonkeyPatch, server: Scripted) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "dispatcher_client.httpx_transport", raising=False)
    with pytest.raises(ImportError, match="httpx"):
        AsyncClient(server.url, "k")


def test_refusals_are_problems(server: Scripted, client: Client) -> None:
    for call in (client.me, client.usage, lambda: list(client.list()), lambda: client.explain(JOB)):
        server.will(problem(403, "missing_scope"))
        with pytest.raises(Problem, match="missing_scope"):
            call()
    assert len(server.asked) == 4


def test_a_rerun_sends_its_changes_under_one_key(server: Scripted, client: Client) -> None:
    server.will(drop, says(202, {"job_id": "NEW", "status": "queued", "rerun_of": JOB}))
    job = client.rerun(JOB, payload={"steps": 9}, callback_url=None, tags=("a",))
    assert (job.job_id, job.data["rerun_of"]) == ("NEW", JOB)
    first, second = server.asked
    assert first.path == second.path == f"/queue/jobs/{JOB}/rerun"
    assert second.body == {"payload": {"steps": 9}, "callback_url": None, "tags": ["a"]}, "null: without it"
    assert first.key == second.key
    with pytest.raises(TypeError, match="a rerun has no model"):
        client.rerun(JOB, model="flux")  # type: ignore[call-arg]
