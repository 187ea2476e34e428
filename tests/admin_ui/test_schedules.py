"""The pages of schedules: fire times, strip and firings; actions that are audited; nothing for viewers."""

from __future__ import annotations

import re

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from gpus.models import AuditEntry, ModelConfig, Pool
from jobs.models import Job
from workflows.schedules.models import Firing, Schedule

from .rows import fill

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


def test_a_backfill_asks_for_its_span(operator: Client) -> None:
    schedule = Schedule.objects.get()
    address = reverse("admin:schedules_schedule_backfill_one", args=[schedule.pk])
    operator.post(address, {"_form_submitted": "True", "begin": "nonsense", "end": "2025-12-03T12:00:00Z"})
    assert not Firing.objects.exclude(by="").exists()
    operator.post(
        address, {"_form_submitted": "True", "begin": "2025-12-01T00:00:00Z", "end": "2025-12-03T12:00:00Z"}
    )
    assert Firing.objects.exclude(by="").filter(outcome="waiting").count() == 3
    assert AuditEntry.objects.filter(action="backfill_schedule").exists()
    page = operator.get(reverse("admin:schedules_schedule_change", args=[schedule.pk])).content.decode()
    assert "4 firings of a backfill wait" in page
    operator.post(address, {"_form_submitted": "True", "begin": "2d", "end": "", "parallel": "on"})
    assert Firing.objects.filter(may_overlap=True, outcome="waiting").count() == 2
    cancel = reverse("admin:schedules_schedule_cancel_backfills_one", args=[schedule.pk])
    operator.post(cancel, {"_form_submitted": "True"})
    assert not Firing.objects.filter(outcome="waiting").exists()
    assert AuditEntry.objects.filter(action="cancel_backfills_of_schedule").exists()


def test_a_viewer_has_no_actions(viewer: Client) -> None:
    act(viewer, "trigger_chosen")
    act(viewer, "pause_chosen")
    assert Schedule.objects.get().paused_from is None
    assert not Firing.objects.filter(outcome="started", backfill="").exists()
