"""The pages of schedules: fire times, strip and firings; actions that are audited; nothing for viewers."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from foundation.ids import new_id
from gpus.models import AuditEntry, ModelConfig, Pool
from jobs.models import Job
from tests.admin_ui.rows import fill
from workflows.schedules.execution.fire import is_paused
from workflows.schedules.models import Firing, Schedule

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("some", "fake_ports")]


@pytest.fixture
def some(db: None) -> None:
    fill(jobs=2)
    pool, _ = Pool.objects.get_or_create(name="zimg")
    ModelConfig.objects.get_or_create(name="zimg", defaults={"pool": pool})


def act(client: Client, action: str) -> list[str]:
    ids = list(Schedule.objects.values_list("pk", flat=True))
    answer = client.post(
        reverse("admin:schedules_schedule_changelist"), {"action": action, "_selected_action": ids}
    )
    return [str(message) for message in get_messages(answer.wsgi_request)][-1:]  # type: ignore[attr-defined]


def test_a_second_click_on_the_action_of_the_list_starts_nothing(operator: Client) -> None:
    Schedule.objects.update(handled_at=timezone.now())
    path, before = reverse("admin:schedules_schedule_changelist"), Job.objects.count()
    page = operator.get(path).content.decode()
    keys = re.findall(r'<input type="hidden" name="key" value="(admin-[0-9a-f]+)"', page)
    assert keys == keys[:1] != []
    ids = list(Schedule.objects.values_list("pk", flat=True))
    sent = {"action": "trigger_chosen", "_selected_action": ids, "index": "0"}
    for _ in range(2):
        operator.post(path, {**sent, "key": keys[0]})
    assert Job.objects.count() == before + 1
    other = re.findall(r'name="key" value="(admin-[0-9a-f]+)"', operator.get(path).content.decode())[0]
    operator.post(path, {**sent, "key": other})
    assert Job.objects.count() == before + 2


def test_the_page_shows_fire_times_firings_and_the_strip(viewer: Client) -> None:
    schedule = Schedule.objects.get()
    page = viewer.get(reverse("admin:schedules_schedule_change", args=[schedule.pk])).content.decode()
    assert "At 02:30 every day (Europe/Berlin)" in page
    assert page.count("02:30:00+0") == 10
    assert 'class="strip"' in page
    assert "missed" in page
    assert "a &lt;b&gt;fox" not in page  # a viewer sees no payload


def test_actions_start_pause_and_resume_and_are_audited(operator: Client) -> None:
    Schedule.objects.update(handled_at=timezone.now())  # one that is ahead is set back by a resume
    before = Job.objects.count()
    assert act(operator, "trigger_chosen") == ["1 started."]
    assert Job.objects.count() == before + 1
    assert act(operator, "pause_chosen") == ["1 paused."]
    assert Schedule.objects.get().next_at is None
    listed = operator.get(reverse("admin:schedules_schedule_changelist")).content.decode()
    assert "Next due at" in listed
    assert (
        str(Schedule.objects.get().next_due_at.year)
        not in re.findall(r"field-next_due[^>]*>([^<]*)", listed)[0]
    )  # type: ignore[union-attr]
    assert act(operator, "resume_chosen") == ["1 resumed."]
    audited = AuditEntry.objects.filter(target__startswith="schedule:").order_by("pk")
    assert list(audited.values_list("action", flat=True)) == [
        "trigger_schedule",
        "pause_schedule",
        "resume_schedule",
    ]


def one(client: Client, action: str, **fields: str) -> Any:
    """Send the dialog of a button on the schedule's page."""
    address = reverse(f"admin:schedules_schedule_{action}_one", args=[Schedule.objects.get().pk])
    return client.post(address, {"_form_submitted": "on", **fields}, follow=True)


def backfill_page(client: Client, **span: str) -> str:
    address = reverse("admin:schedules_schedule_backfill_one", args=[Schedule.objects.get().pk])
    return client.get(address, span).content.decode()


def start_backfill(client: Client, page: str) -> None:
    fields = dict(re.findall(r'<input type="hidden" name="(begin|end|key|parallel)" value="([^"]*)"', page))
    client.post(reverse("admin:schedules_schedule_backfill_one", args=[Schedule.objects.get().pk]), fields)


def test_a_backfill_counts_its_due_times_before_it_starts_them(operator: Client) -> None:
    own = Firing.objects.count()
    page = backfill_page(operator, begin="2025-12-01T00:00:00Z", end="2025-12-03T12:00:00Z")
    assert ">3 due times<" in page
    assert "2025-12-03 01:30:00" in page
    assert Firing.objects.count() == own, "it only counts"
    start_backfill(operator, page)
    assert Firing.objects.exclude(by="").filter(outcome="waiting").count() == 3
    start_backfill(operator, page)
    assert Firing.objects.count() == own + 3, "a second click"
    assert AuditEntry.objects.filter(action="backfill_schedule").count() == 1
    shown = operator.get(reverse("admin:schedules_schedule_change", args=[Schedule.objects.get().pk]))
    assert "4 firings of a backfill wait" in shown.content.decode()
    start_backfill(operator, backfill_page(operator, begin="2d", parallel="on"))
    assert Firing.objects.filter(may_overlap=True, outcome="waiting").count() == 2
    assert "Cancel backfills" in shown.content.decode()
    one(operator, "cancel_backfills")
    assert not Firing.objects.filter(outcome="waiting").exists()
    assert AuditEntry.objects.filter(action="cancel_backfills_of_schedule").exists()
    assert one(operator, "cancel_backfills").status_code == 403, "none waits"


@pytest.mark.parametrize(
    ("span", "error"),
    [
        ({"begin": "nonsense"}, "is not a time such as"),
        ({"begin": "2025-12-03", "end": "2025-12-01"}, "ends before it begins"),
        ({"begin": "2001-01-01"}, "more than 1000 due times"),
        ({"begin": "2099-01-01", "end": "2099-02-01"}, "No due time in this span has come"),
        ({"begin": "0001-01-01T00:00+14:00", "end": "0001-01-02"}, ""),
        ({"begin": "x" * 10_000}, "at most 40 characters"),
        ({"begin": "<b>"}, "&#x27;&lt;b&gt;&#x27; is not"),
    ],
)
def test_a_span_that_can_not_be_backfilled_is_an_error_at_its_field(
    operator: Client, span: dict[str, str], error: str
) -> None:
    before = Firing.objects.count()
    page = backfill_page(operator, **span)
    assert error in page
    assert len(page) < 100_000
    assert Firing.objects.count() == before


def test_a_pause_has_an_end_and_a_reason(operator: Client) -> None:
    Schedule.objects.update(handled_at=timezone.now())
    page = reverse("admin:schedules_schedule_change", args=[Schedule.objects.get().pk])
    assert "resume_one" not in operator.get(page).content.decode(), "it is not paused"
    assert b"This time has passed" in one(operator, "pause", until="2001-01-01").content
    assert Schedule.objects.get().paused_from is None
    one(operator, "pause", until="7d", reason="<b>moving</b>")
    schedule = Schedule.objects.get()
    assert schedule.paused_until is not None
    assert timedelta(days=6) < schedule.paused_until - timezone.now() < timedelta(days=8)
    shown = operator.get(page).content.decode()
    assert f"until {schedule.paused_until:%Y-%m-%d %H:%M} UTC: &lt;b&gt;moving" in shown
    assert "resume_one" in shown
    one(operator, "resume")
    assert one(operator, "resume").status_code == 403
    assert not is_paused(Schedule.objects.get(), timezone.now())


def test_a_second_click_starts_no_second_job(operator: Client) -> None:
    before = Job.objects.count()
    for _ in range(2):
        one(operator, "trigger", key="one click")
    assert Job.objects.count() == before + 1


def test_the_strip_says_in_words_what_it_draws(viewer: Client) -> None:
    schedule = Schedule.objects.get()
    now = timezone.now()
    Firing.objects.all().delete()
    Schedule.objects.update(cron="* * * * *", handled_at=now, next_due_at=now)
    hour = timedelta(hours=1)
    Firing.objects.create(
        schedule=schedule, due_at=now - 5 * hour, until_at=now - 4 * hour, count=60, outcome="missed", at=now
    )
    Firing.objects.create(
        schedule=schedule,
        due_at=now - hour,
        outcome="started",
        job_id=new_id(),
        ended_at=now,
        end_state="failed",
        at=now,
    )
    page = viewer.get(reverse("admin:schedules_schedule_change", args=[schedule.pk])).content.decode()
    assert "Last 24 hours: 1 started, 60 missed, 1 of them failed." in page
    assert "Next 24 hours: more than 500 due." in page
    assert re.search(r'width="2\.08%" height="24" class="tick tick-missed"', page), "an hour of 48"
    assert 'class="tick tick-failed"' in page


def test_a_viewer_has_no_actions(viewer: Client) -> None:
    act(viewer, "trigger_chosen")
    act(viewer, "pause_chosen")
    for action in ("trigger", "pause", "resume", "cancel_backfills", "backfill"):
        assert one(viewer, action, key="k", begin="2d").status_code == 403
    page = reverse("admin:schedules_schedule_change", args=[Schedule.objects.get().pk])
    assert "Start now" not in viewer.get(page).content.decode()
    assert Schedule.objects.get().paused_from is None
    assert not Firing.objects.filter(outcome="started", backfill="").exists()
