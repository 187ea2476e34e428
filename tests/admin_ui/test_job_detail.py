"""A job's own page: its parts, its downloads, and its buttons in each state."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from admin_ui.pages import job as job_page
from admin_ui.pages import job_log
from gpus.models import AuditEntry
from jobs.models import Attempt, Callback, Event, Job, PushedResult
from tests.admin_ui.rows import NOW, fill
from tests.support.admin_ports import FakePorts

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 100
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("some")]


@pytest.fixture
def some(db: None) -> None:
    fill(jobs=12)


def job_in(state: str) -> Job:
    return Job.objects.filter(state=state).order_by("id")[0]


def page_of(client: Client, job: Job, **query: Any) -> str:
    return client.get(reverse("admin:jobs_job_change", args=[job.id]), query).content.decode()


def live(client: Client, job: Job, seq: int) -> str:
    return client.get(reverse("admin:jobs_job_live", args=[job.id]), {"seq": seq}).content.decode()


def test_the_page_shows_attempts_events_and_callbacks(viewer: Client) -> None:
    job = job_in("failed")
    page = page_of(viewer, job)
    for shown in (
        "Attempt 1",
        "Attempts 2–3",
        "the same error, 2 times",
        f"{job.model}-server-1/0",
        "timeout",
        "queued",
        "https://hooks.example.com/gpu",
        "HTTP 500",
        "<dt>Attempts</dt><dd>3</dd>",
    ):
        assert shown in page


def test_the_page_counts_the_retries_that_are_left(viewer: Client) -> None:
    job = job_in("retrying")
    for tries, text in ((0, "0 · 50 retries left"), (1, "0 · 49 retries left"), (50, "<dd>0</dd>")):
        Job.objects.filter(id=job.id).update(tries=tries)
        assert text in page_of(viewer, job)


def test_the_page_of_an_ended_job_does_not_reload(viewer: Client) -> None:
    assert 'hx-trigger="stale' not in page_of(viewer, job_in("completed"))
    assert 'hx-trigger="stale"' in page_of(viewer, job_in("running"))


def test_a_reload_returns_only_the_live_part_until_an_event_comes(viewer: Client) -> None:
    job = job_in("running")
    quiet = live(viewer, job, job.event_seq)
    assert 'id="job-live"' in quiet
    assert 'id="job-detail"' not in quiet
    Event.objects.create(job=job, seq=3, type="adopted", at=NOW, data={})
    Job.objects.filter(id=job.id).update(event_seq=3)
    both = live(viewer, job, job.event_seq)
    assert 'hx-swap-oob="true"' in both
    assert "adopted" in both


def test_the_live_part_reads_no_payloads(viewer: Client) -> None:
    job = job_in("running")
    with CaptureQueriesContext(connection) as asked:
        live(viewer, job, job.event_seq)
    assert len(asked) <= 10
    assert not [query["sql"] for query in asked if '"payload"' in query["sql"] or '"result"' in query["sql"]]


def test_a_job_of_many_attempts_shows_the_latest(viewer: Client) -> None:
    made = job_page.MAX_LANES + 4
    job = job_in("queued")
    Attempt.objects.bulk_create(
        Attempt(
            id=f"{number:026d}",
            job=job,
            number=number,
            state="refused",
            server="gpu-1",
            slot=0,
            model="zimg",
            started_at=NOW + timedelta(seconds=number),
            finished_at=NOW + timedelta(seconds=number),
        )
        for number in range(1, made + 1)
    )
    Job.objects.filter(id=job.id).update(attempts_made=made)
    page = page_of(viewer, job)
    assert "Attempt 5" in page
    assert "Attempt 4" not in page
    assert "The latest" in page


def test_embedded_images_are_served_with_their_content_type(operator: Client) -> None:
    job = job_in("completed")
    text = base64.b64encode(PNG).decode()
    svg = base64.b64encode(b"<svg onload='alert(1)'/>").decode()
    # the order of keys is that of PostgreSQL's jsonb, too
    result = {
        "far": "https://x.example/1.png",
        "images": [text],
        "vector": f"data:image/svg+xml;base64,{svg}",
    }
    Job.objects.filter(id=job.id).update(result=result)
    page = page_of(operator, job)
    address = reverse("admin:jobs_job_media", args=[job.id, "result", 1])
    assert f'src="{address}"' in page
    assert 'src="https://x.example' not in page
    assert 'href="https://x.example/1.png"' in page
    image = operator.get(address)
    assert (image.content, image["Content-Type"]) == (PNG, "image/png")
    assert "sandbox" in image["Content-Security-Policy"]
    vector = operator.get(reverse("admin:jobs_job_media", args=[job.id, "result", 2]))
    assert vector["Content-Type"] == "application/octet-stream"
    assert vector["Content-Disposition"].startswith("attachment")
    for place in (0, 9):
        missing = reverse("admin:jobs_job_media", args=[job.id, "result", place])
        assert operator.get(missing).status_code == 404
    assert operator.get(reverse("admin:jobs_job_media", args=[job.id, "tags", 0])).status_code == 404
    with CaptureQueriesContext(connection) as asked:
        operator.get(address)
    assert not [query["sql"] for query in asked if '"payload"' in query["sql"]]


def test_raw_values_are_downloads(operator: Client) -> None:
    job = job_in("completed")
    raw = operator.get(reverse("admin:jobs_job_raw", args=[job.id, "payload"]))
    assert raw.json() == job.payload
    assert raw["Content-Disposition"] == f'attachment; filename="{job.id}-payload.json"'
    whole = operator.get(reverse("admin:jobs_job_raw", args=[job.id, "job"])).json()
    assert (whole["job_id"], whole["result"]) == (job.id, job.result)
    assert operator.get(reverse("admin:jobs_job_raw", args=[job.id, "secrets"])).status_code == 404


def test_without_permission_neither_payload_nor_result_is_shown(viewer: Client) -> None:
    job = job_in("completed")
    Job.objects.filter(id=job.id).update(payload={"p": "hush-in"}, result={"images": ["hush-out"]})
    page = page_of(viewer, job) + live(viewer, job, seq=-1)
    assert "jobs.view_payload" in page
    whole = viewer.get(reverse("admin:jobs_job_raw", args=[job.id, "job"]))
    assert "hush" not in page + whole.content.decode()
    assert whole.json()["result_hidden"] is True
    for name in ("payload", "result"):
        assert viewer.get(reverse("admin:jobs_job_raw", args=[job.id, name])).status_code == 403
        assert viewer.get(reverse("admin:jobs_job_media", args=[job.id, name, 0])).status_code == 403


def test_partial_output_is_hidden_like_the_result(viewer: Client, operator: Client) -> None:
    job = job_in("running")
    event = Event.objects.create(
        job=job, seq=3, type="partial", at=NOW, data={"attempt": 1, "part": 1, "output": ["hush"]}
    )
    Job.objects.filter(id=job.id).update(event_seq=3)
    event_page = reverse("admin:jobs_event_change", args=[event.pk])
    hidden = page_of(viewer, job) + live(viewer, job, seq=-1) + viewer.get(event_page).content.decode()
    assert "hush" not in hidden
    assert hidden.count("output_hidden") == 3
    shown = [page_of(operator, job), live(operator, job, seq=-1), operator.get(event_page).content.decode()]
    assert all("hush" in page for page in shown)


def test_log_lines_are_shown_as_text_and_hidden_like_the_result(viewer: Client, operator: Client) -> None:
    job = job_in("running")
    evil = {"at": NOW.isoformat(), "stream": "stderr", "level": "error", "text": "<script>hush()</script>"}
    lines = [{**evil, "stream": "stdout", "text": f"line {number}"} for number in range(job_log.MAX_LINES)]
    event = Event.objects.create(
        job=job, seq=3, type="log", at=NOW, data={"attempt": 1, "part": 1, "lines": [*lines, evil]}
    )
    Job.objects.filter(id=job.id).update(event_seq=3)
    event_page = reverse("admin:jobs_event_change", args=[event.pk])
    hidden = page_of(viewer, job) + live(viewer, job, seq=-1) + viewer.get(event_page).content.decode()
    assert "hush" not in hidden
    assert "line 5" not in hidden
    for page in (page_of(operator, job), live(operator, job, seq=-1)):
        assert "&lt;script&gt;hush()&lt;/script&gt;" in page
        assert "<script>hush" not in page
        assert 'role="log"' in page
        assert "line 0<" not in page, "the last lines only"
        assert f"/api/v1/queue/jobs/{job.id}/logs" in page


def test_many_progress_events_do_not_displace_the_other_events(viewer: Client) -> None:
    job = job_in("running")
    Event.objects.bulk_create(
        Event(job=job, seq=seq, type=kind, at=NOW + timedelta(seconds=seq), data={"part": seq})
        for seq, kind in enumerate(
            ["adopted", *["partial", "progress"] * (job_page.MAX_EVENTS // 2)], start=3
        )
    )
    last = job_page.MAX_EVENTS + 3
    Job.objects.filter(id=job.id).update(event_seq=last)
    course = job_page.course(job, now=NOW)
    assert [event.type for event in course.events] == ["queued", "started", "adopted"]
    listed = [step.row.events[0].seq for step in job_page.steps(course, with_output=False)]
    assert listed == [*range(last, last - job_page.NEWS_LISTED, -1), 3, 2, 1]
    page = page_of(viewer, job)
    assert "adopted" in page
    assert f"All {last}" in page


def test_a_list_of_events_does_not_read_their_data(operator: Client) -> None:
    with CaptureQueriesContext(connection) as asked:
        assert operator.get(reverse("admin:jobs_event_changelist")).status_code == 200
    events = [query["sql"] for query in asked if 'FROM "jobs_event"' in query["sql"]]
    assert events
    assert not [sql for sql in events if '"jobs_event"."data"' in sql]


def test_messages_that_contain_results_are_hidden_like_results(viewer: Client, operator: Client) -> None:
    callback = Callback.objects.order_by("id")[0]
    Callback.objects.filter(pk=callback.pk).update(body='{"result": "hush"}')
    pushed = PushedResult.objects.create(
        attempt_id="0" * 26, job_id=callback.job_id, body={"result": "hush"}, received_at=NOW
    )
    for name, row in (("callback", callback), ("pushedresult", pushed)):
        address = reverse(f"admin:jobs_{name}_change", args=[row.pk])
        assert "hush" not in viewer.get(address).content.decode()
        assert "hush" in operator.get(address).content.decode()


def test_the_page_of_a_deleted_job_redirects(viewer: Client) -> None:
    gone = "0" * 26
    assert viewer.get(reverse("admin:jobs_job_change", args=[gone])).status_code == 302
    assert viewer.get(reverse("admin:jobs_job_live", args=[gone])).status_code == 404


def test_staff_without_permissions_get_403(client: Client, django_user_model: Any) -> None:
    client.force_login(django_user_model.objects.create_user("viewer", is_staff=True))
    job = job_in("completed")
    for address in (
        reverse("admin:jobs_job_change", args=[job.id]),
        reverse("admin:jobs_job_live", args=[job.id]),
        reverse("admin:jobs_job_raw", args=[job.id, "payload"]),
        reverse("admin:jobs_job_media", args=[job.id, "result", 0]),
        reverse("admin:admin_ui_deadletter_groups"),
    ):
        assert client.get(address).status_code == 403


def test_the_priority_of_a_waiting_job_can_be_changed(
    operator: Client, viewer: Client, fake_ports: FakePorts
) -> None:
    job = job_in("retrying")
    button = reverse("admin:jobs_job_priority_one", args=[job.id])
    assert button in page_of(operator, job)
    assert button not in page_of(viewer, job)
    running = job_in("running")
    assert reverse("admin:jobs_job_priority_one", args=[running.id]) not in page_of(operator, running)
    assert (
        b"less than or equal to 9" in operator.post(button, {"_form_submitted": "on", "priority": 10}).content
    )
    assert viewer.post(button, {"_form_submitted": "on", "priority": 1}).status_code == 403
    assert operator.post(button, {"_form_submitted": "on", "priority": 2}).status_code == 302
    assert Job.objects.get(id=job.id).priority == 2
    assert AuditEntry.objects.filter(
        actor="user:operators", action="change_priority", target=f"job:{job.id}"
    ).exists()


def test_a_waiting_job_can_be_moved_to_the_front_of_the_queue(
    operator: Client, fake_ports: FakePorts
) -> None:
    job = job_in("retrying")
    button = reverse("admin:jobs_job_run_next_one", args=[job.id])
    assert operator.post(button, {"_form_submitted": "on"}).status_code == 302
    moved = Job.objects.get(id=job.id)
    others = Job.objects.filter(pool=job.pool, state__in=["queued", "retrying"]).exclude(id=job.id)
    assert moved.priority == 1
    assert all(moved.place_us < other.place_us for other in others)


def test_without_redis_the_job_keeps_its_place_and_the_operator_gets_a_warning(
    operator: Client, fake_ports: FakePorts
) -> None:
    fake_ports.leases.away = True
    job = job_in("queued")
    button = reverse("admin:jobs_job_run_next_one", args=[job.id])
    answer = operator.post(button, {"_form_submitted": "on"}, follow=True)
    assert b"Redis does not answer now" in answer.content
    assert Job.objects.get(id=job.id).place_us == job.place_us


def test_actions_on_jobs_are_recorded_in_the_audit(operator: Client, fake_ports: FakePorts) -> None:
    cancelled, retried = job_in("queued"), job_in("failed")
    for name, job in (("cancel_one", cancelled), ("retry_one", retried)):
        operator.post(reverse(f"admin:jobs_job_{name}", args=[job.id]), {"_form_submitted": "on"})
    recorded = set(AuditEntry.objects.filter(actor="user:operators").values_list("action", "target"))
    assert ("cancel_job", f"job:{cancelled.id}") in recorded
    assert f"job:{retried.id}" in {target for _, target in recorded}
