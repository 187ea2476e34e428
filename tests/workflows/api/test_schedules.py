"""Schedules over HTTP: create, replace, preview, trigger, backfill, pause; tenants; refusals."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from jobs.models import ApiKey, Job
from tests.support.api_harness import Account, ApiHarness, forget_keys
from tests.support.fakes import ManualClock
from workflows.schedules.models import Firing, Schedule
from workflows.sweeps import due_schedules

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("zimg")]

SUBMIT = {"model": "zimg", "payload": {"day": {"$ref": "due_at"}}}
DAILY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "submit": SUBMIT}


@pytest.fixture
def clock(api: ApiHarness) -> ManualClock:
    api.clock = clock = ManualClock()
    return clock


def call(account: Account, method: str, path: str, body: Any = None, **headers: str) -> Any:
    send = getattr(account.client, method)
    return send(f"/api/v1/schedules{path}", body, format="json", headers=headers)


def create(account: Account, name: str = "nightly", **fields: Any) -> Any:
    return call(account, "post", "", {"name": name, **DAILY, **fields})


def errors(answer: Any) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in answer.json()["errors"]]


def test_one_schedule_too_many_is_a_conflict(acme: Account, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, schedules=1)
    assert create(acme, "a").status_code == 201
    for refused in (create(acme, "b"), call(acme, "put", "/b", DAILY)):
        assert (refused.status_code, refused.json()["code"]) == (409, "too_many_schedules")


@pytest.mark.usefixtures("clock")
def test_a_schedule_is_created_shown_replaced_and_deleted(acme: Account) -> None:
    answer = create(acme)
    assert answer.status_code == 201, answer.json()
    shown = answer.json()
    assert len(shown["next"]) == 10
    assert shown["next"][0] == {
        "due_at": "2026-01-01T01:30:00Z",
        "fires_at": "2026-01-01T01:30:00Z",
        "local": "2026-01-01T02:30:00+01:00",
    }
    assert shown["words"] == "At 02:30 every day (Europe/Berlin)"
    assert create(acme).status_code == 409
    same = call(acme, "put", "/nightly", DAILY)
    assert (same.status_code, Schedule.objects.get().version) == (200, 1)
    changed = call(acme, "put", "/nightly", {**DAILY, "cron": "0 3 * * *"})
    assert (changed.status_code, Schedule.objects.get().version) == (200, 2)
    assert call(acme, "put", "/other", DAILY).status_code == 201
    listed = acme.client.get("/api/v1/schedules").json()["results"]
    assert [one["name"] for one in listed] == ["nightly", "other"]
    assert call(acme, "delete", "/other").status_code == 204
    assert acme.client.get("/api/v1/schedules/other").status_code == 404


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"cron": "0 0 31 2 *"}, [("/cron", "invalid_cron")]),
        ({"cron": "* * * * * *"}, [("/cron", "invalid_cron")]),
        ({"cron": "* " * 200}, [("/cron", "invalid_cron")]),
        ({"timezone": "Mars/Olympus"}, [("/timezone", "unknown_timezone")]),
        (
            {"every_seconds": 60.0},
            [
                ("/every_seconds", "one_of"),
            ],
        ),
        ({"cron": None}, [("", "one_of"), ("/timezone", "not_allowed")]),
        ({"submit": None}, [("", "one_of")]),
        ({"submit": {**SUBMIT, "run_at": "2027-01-01T00:00:00Z"}}, [("/submit/run_at", "not_allowed")]),
        ({"submit": {"model": "zimg"}}, [("/submit/payload", "required")]),
        ({"submit": {**SUBMIT, "model": "nope"}}, [("/submit/model", "unknown_model")]),
        (
            {"submit": {"model": "zimg", "payload": {"a": [{"$ref": "inputs.x"}]}}},
            [("/submit/payload/a/0/$ref", "invalid_reference")],
        ),
        ({"submit": None, "workflow": {"name": "nope"}}, [("/workflow/name", "unknown_workflow")]),
        ({"overlap": "sometimes"}, [("/overlap", "not_a_choice")]),
        ({"catch_up_seconds": 1e7}, [("/catch_up_seconds", "out_of_range")]),
        ({"end_at": "2025-01-01T00:00:00Z"}, [("/end_at", "never")]),
        (
            {"start_at": "2027-01-01T00:00:00Z", "end_at": "2026-06-01T00:00:00Z"},
            [("/end_at", "out_of_range")],
        ),
        ({"name": "preview"}, [("/name", "invalid")]),
        ({"colour": 1}, [("/colour", "unknown_field")]),
    ],
)
@pytest.mark.usefixtures("clock")
def test_a_wrong_schedule_is_refused_with_its_places(acme: Account, fields: Any, expected: Any) -> None:
    answer = create(acme, **fields)
    assert (answer.status_code, errors(answer)) == (422, expected)


@pytest.mark.usefixtures("clock")
def test_a_schedule_that_does_not_say_catches_up_within_the_limit(acme: Account, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, schedule_catch_up_seconds=600.0)
    assert create(acme, catch_up_seconds=None).json()["catch_up_seconds"] == 600.0


@pytest.mark.usefixtures("clock")
def test_a_short_period_and_a_past_time_are_refused(acme: Account) -> None:
    answer = call(acme, "post", "", {"name": "a", "every_seconds": 1.0, "submit": SUBMIT})
    assert errors(answer) == [("/every_seconds", "out_of_range")]
    answer = call(acme, "post", "", {"name": "a", "at": "2025-01-01T00:00:00Z", "submit": SUBMIT})
    assert errors(answer) == [("/at", "never")]


@pytest.mark.usefixtures("clock")
def test_a_preview_of_a_body_that_is_not_stored(acme: Account) -> None:
    answer = acme.client.post("/api/v1/schedules/preview?n=3", DAILY, format="json")
    assert [one["local"][:16] for one in answer.json()["next"]] == [
        "2026-01-01T02:30",
        "2026-01-02T02:30",
        "2026-01-03T02:30",
    ]
    assert not Schedule.objects.exists()
    create(acme)
    assert len(acme.client.get("/api/v1/schedules/nightly/preview?n=200").json()["next"]) == 200
    assert acme.client.get("/api/v1/schedules/nightly/preview?n=0").status_code == 400


def test_a_preview_of_a_body_keeps_what_the_stored_schedule_keeps(acme: Account, clock: ManualClock) -> None:
    hourly = {"name": "hourly", "every_seconds": 3600, "jitter_seconds": 600, "submit": SUBMIT}
    call(acme, "post", "", hourly)
    clock.move(1800)
    stored = acme.client.get("/api/v1/schedules/hourly/preview?n=3").json()
    assert call(acme, "post", "/preview?n=3", hourly).json() == stored
    assert stored["next"][0]["due_at"] == "2026-01-01T01:00:00Z", "by the anchor of the stored one"
    assert stored["next"][0]["fires_at"] > stored["next"][0]["due_at"]
    call(acme, "post", "/hourly/pause")
    assert call(acme, "post", "/preview", hourly).json()["paused"]
    new = call(acme, "post", "/preview?n=1", {**hourly, "name": "other"}).json()
    assert new["next"][0]["due_at"] == "2026-01-01T01:30:00Z", "by now, when it would be created"
    nameless = call(acme, "post", "/preview", {key: hourly[key] for key in hourly if key != "name"})
    assert errors(nameless) == [("/name", "required")], "the jitter is of a name"
    (row,) = Schedule.objects.all()
    assert row.version == 2, "the pause alone"


def test_a_due_time_that_waits_for_its_jitter_is_in_the_preview(acme: Account, clock: ManualClock) -> None:
    body = {"every_seconds": 3600, "jitter_seconds": 3000, "submit": SUBMIT}
    call(acme, "put", "/hourly", body)
    jitter = Schedule.objects.get().jitter.total_seconds()
    assert 60 < jitter < 3000
    clock.move(3600 + jitter / 2)

    def next_due() -> str:
        return str(acme.client.get("/api/v1/schedules/hourly/preview?n=1").json()["next"][0]["due_at"])

    assert next_due() == "2026-01-01T01:00:00Z", "it has come, and fires later"
    assert acme.client.get("/api/v1/schedules/hourly").json()["next"][0]["due_at"] == next_due()
    clock.move(jitter)
    assert next_due() == "2026-01-01T02:00:00Z"


def test_due_times_of_a_pause_are_in_no_preview(acme: Account, clock: ManualClock) -> None:
    call(acme, "put", "/hourly", {"every_seconds": 3600, "jitter_seconds": 3000, "submit": SUBMIT})
    jitter = Schedule.objects.get().jitter.total_seconds()
    clock.move(3000)
    call(acme, "post", "/hourly/pause", {"until": (clock.now() + timedelta(seconds=900)).isoformat()})
    clock.move(900 + jitter / 2)  # the due time was in the pause, and its jitter is not over
    found = acme.client.get("/api/v1/schedules/hourly/preview?n=1").json()["next"]
    assert found[0]["due_at"] == "2026-01-01T02:00:00Z"


def test_a_pause_until_a_past_time_is_refused(acme: Account, clock: ManualClock) -> None:
    create(acme)
    for until in (clock.now() - timedelta(seconds=1), clock.now()):
        refused = call(acme, "post", "/nightly/pause", {"until": until.isoformat()})
        assert refused.status_code == 422, refused.json()
        assert errors(refused) == [("/until", "pause_refused")]
    assert not acme.client.get("/api/v1/schedules/nightly").json()["paused"]


@pytest.mark.usefixtures("clock")
def test_schedules_of_another_tenant_do_not_exist(acme: Account, other: Account) -> None:
    create(acme)
    span = {"from": "2025-12-01T00:00:00Z", "to": "2025-12-02T00:00:00Z"}
    for method, path, body in (
        ("get", "/nightly", None),
        ("delete", "/nightly", None),
        ("get", "/nightly/firings", None),
        ("get", "/nightly/preview", None),
        ("post", "/nightly/trigger", None),
        ("post", "/nightly/pause", None),
        ("post", "/nightly/resume", None),
        ("post", "/nightly/backfill", span),
        ("post", "/nightly/backfill/cancel", None),
    ):
        assert call(other, method, path, body).status_code == 404, path
    assert create(other).status_code == 201


def test_a_trigger_and_its_firing(acme: Account, clock: ManualClock) -> None:
    create(acme)
    first = call(acme, "post", "/nightly/trigger", **{"Idempotency-Key": "1"})
    assert first.status_code == 202, first.json()
    again = call(acme, "post", "/nightly/trigger", **{"Idempotency-Key": "1"})
    assert again.json()["job_id"] == first.json()["job_id"] == Job.objects.get().id
    listed = acme.client.get("/api/v1/schedules/nightly/firings?outcome=started").json()["results"]
    assert [(one["cause"], one["outcome"], one["job_id"]) for one in listed] == [
        ("request", "started", first.json()["job_id"])
    ]


def test_a_trigger_of_a_refused_target_is_its_error(acme: Account, clock: ManualClock) -> None:
    create(acme)
    acme.tenant.allowed_models = []
    acme.tenant.save()
    answer = call(acme, "post", "/nightly/trigger")
    assert (answer.status_code, answer.json()["code"]) == (403, "model_not_allowed")
    assert not Firing.objects.exists()


def test_a_backfill_is_counted_first(acme: Account, clock: ManualClock, settings: Any) -> None:
    create(acme)
    span = {"from": "2025-12-01T00:00:00Z", "to": "2025-12-10T12:00:00Z"}
    counted = call(acme, "post", "/nightly/backfill", {**span, "dry_run": True})
    assert (counted.status_code, counted.json()["count"]) == (200, 10)
    assert not Firing.objects.exists()
    assert call(acme, "post", "/nightly/backfill", span).status_code == 202
    assert Firing.objects.filter(outcome="waiting").count() == 10
    long = {"from": "2000-01-01T00:00:00Z", "to": "2025-12-10T12:00:00Z"}
    refused = call(acme, "post", "/nightly/backfill", long)
    assert (refused.status_code, refused.json()["code"]) == (422, "backfill_refused")
    assert "1000" in refused.json()["detail"]
    empty = {"from": "2025-12-01T12:00:00Z", "to": "2025-12-01T13:00:00Z"}
    assert errors(call(acme, "post", "/nightly/backfill", empty)) == [("/from", "backfill_refused")]


def test_a_key_means_one_trigger_or_one_backfill(acme: Account, clock: ManualClock) -> None:
    create(acme)
    key, yesterday = {"Idempotency-Key": "k"}, clock.now() - timedelta(days=1)
    span = {"from": yesterday.isoformat(), "to": clock.now().isoformat()}
    first = call(acme, "post", "/nightly/trigger", **key)
    again = call(acme, "post", "/nightly/trigger", **key)
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    refused = call(acme, "post", "/nightly/backfill", span, **key)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_conflict")
    other = {"Idempotency-Key": "other"}
    done = call(acme, "post", "/nightly/backfill", span, **other)
    again = call(acme, "post", "/nightly/backfill", span, **other)
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (done.json(), "true")
    assert not {"Idempotency-Replayed"} & {*first.headers, *done.headers}
    longer = {**span, "from": (yesterday - timedelta(days=1)).isoformat()}
    assert call(acme, "post", "/nightly/backfill", longer, **other).status_code == 422
    assert call(acme, "post", "/nightly/trigger", **other).status_code == 422
    assert Firing.objects.count() == 2


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("year", ["0001-01-01", "9999-12-31"])
def test_years_at_the_ends_of_the_calendar_are_no_error_of_ours(acme: Account, year: str) -> None:
    create(acme)
    span = {"from": f"{year}T00:00:00Z", "to": f"{year}T23:59:59Z"}
    assert call(acme, "post", "/nightly/backfill", span).status_code == 422
    assert create(acme, "b", end_at=span["to"]).status_code == 422
    assert create(acme, "c", start_at=span["from"]).status_code == (201 if year == "0001-01-01" else 422)
    until = call(acme, "post", "/nightly/pause", {"until": span["to"]})
    assert until.status_code == (422 if year == "0001-01-01" else 200)


def test_a_pause_and_what_it_shows(acme: Account, clock: ManualClock, api: ApiHarness) -> None:
    create(acme)
    paused = call(acme, "post", "/nightly/pause", {"reason": "holidays"}).json()
    assert (paused["paused"], paused["pause_reason"], paused["next"]) == (True, "holidays", [])
    assert paused["next_due_at"] is None
    [listed] = acme.client.get("/api/v1/schedules").json()["results"]
    assert listed["next_due_at"] is None
    preview = acme.client.get("/api/v1/schedules/nightly/preview?n=1").json()
    assert (preview["paused"], preview["next"][0]["due_at"]) == (True, "2026-01-01T01:30:00Z")
    until = call(acme, "post", "/nightly/pause", {"until": "2026-01-05T00:00:00Z"}).json()
    assert until["next"][0]["due_at"] == until["next_due_at"] == "2026-01-05T01:30:00Z"
    assert acme.client.get("/api/v1/schedules/nightly/preview?n=1").json()["paused"] is False
    resumed = call(acme, "post", "/nightly/resume").json()
    assert (resumed["paused"], resumed["next"][0]["due_at"]) == (False, "2026-01-01T01:30:00Z")
    assert resumed["next_due_at"] == "2026-01-01T01:30:00Z"
    clock.move(3 * 3600)
    due_schedules.DueSchedulesSweep()(api.ports)
    assert acme.client.get("/api/v1/schedules/nightly/firings").json()["results"][0]["outcome"] == "missed"


@pytest.mark.usefixtures("clock")
def test_a_key_for_reading_changes_nothing(acme: Account) -> None:
    create(acme)
    ApiKey.objects.update(scopes=["read"])
    forget_keys()
    assert acme.client.get("/api/v1/schedules/nightly").status_code == 200
    assert call(acme, "post", "/preview", DAILY).status_code == 200
    for method, path in (
        ("put", "/nightly"),
        ("post", ""),
        ("delete", "/nightly"),
        ("post", "/nightly/trigger"),
        ("post", "/nightly/backfill/cancel"),
    ):
        assert call(acme, method, path, DAILY).status_code == 403


def test_firings_are_paged_by_cursor(acme: Account, clock: ManualClock) -> None:
    create(acme)
    for _ in range(5):
        clock.move(1)
        call(acme, "post", "/nightly/trigger")
    first = acme.client.get("/api/v1/schedules/nightly/firings?limit=3").json()
    rest = acme.client.get(first["next"]).json()
    ids = [one["firing_id"] for page in (first, rest) for one in page["results"]]
    assert (len(ids), ids) == (5, sorted(ids, reverse=True))


def test_a_schedule_shows_what_waits(acme: Account, clock: ManualClock, api: ApiHarness) -> None:
    create(acme)
    span = {"from": "2025-12-01T00:00:00Z", "to": "2025-12-03T12:00:00Z"}
    call(acme, "post", "/nightly/backfill", span)
    due_schedules.DueSchedulesSweep()(api.ports)
    shown = acme.client.get("/api/v1/schedules/nightly").json()["backlog"]
    assert shown["own"] is None
    assert (shown["backfills"]["waiting"], shown["backfills"]["first_due_at"]) == (2, "2025-12-02T01:30:00Z")
    job = Job.objects.get()
    assert shown["backfills"]["waits_for"] == [
        {"due_at": "2025-12-01T01:30:00Z", "job_id": job.id, "run_id": None}
    ]
    assert "`parallel`" in shown["backfills"]["message"]
    assert [call(acme, "post", "/nightly/backfill/cancel").json() for _ in range(2)] == [
        {"count": 2},
        {"count": 0},
    ]
    assert acme.client.get("/api/v1/schedules/nightly").json()["backlog"] is None
