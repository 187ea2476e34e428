"""The page *Run again*: the earlier payload in a form, the model's checks, a new job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from admin_ui.pages import rerun
from gpus.models import AuditEntry, ModelConfig
from jobs.models import Job
from tests.admin_ui.rows import fill

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]


@pytest.fixture
def job(db: None) -> Job:
    fill(jobs=6)
    return Job.objects.get(state="completed")


def address(job: Job) -> str:
    return reverse("admin:jobs_job_rerun", args=[job.id])


def send(client: Client, job: Job, **changes: Any) -> Any:
    form = client.get(address(job)).context["form"]
    return client.post(address(job), {**form.initial, **changes})


def new_job(job: Job) -> Job:
    return Job.objects.get(rerun_of=job.id)


def test_the_form_has_the_earlier_values_and_submits_a_new_job(operator: Client, job: Job) -> None:
    page = operator.get(address(job))
    assert json.loads(page.context["form"].initial["payload"]) == job.payload
    answer = send(operator, job, payload='{"prompt": "new"}', priority=2, tags="a, b")
    new = new_job(job)
    assert answer["Location"] == reverse("admin:jobs_job_change", args=[new.id])
    assert (new.payload, new.priority, new.tags) == ({"prompt": "new"}, 2, ["a", "b"])
    assert (new.callback_url, new.tenant_id) == (job.callback_url, job.tenant_id)
    entry = AuditEntry.objects.get(action="rerun_job")
    assert (entry.actor, entry.target) == ("user:operators", f"job:{new.id}")
    assert new.id in operator.get(reverse("admin:jobs_job_change", args=[job.id])).content.decode()
    assert job.id in operator.get(reverse("admin:jobs_job_change", args=[new.id])).content.decode()


def test_a_second_click_makes_no_second_job(operator: Client, job: Job) -> None:
    form = operator.get(address(job)).context["form"]
    first, second = (operator.post(address(job), form.initial) for _ in range(2))
    assert first["Location"] == second["Location"]
    assert Job.objects.filter(rerun_of=job.id).count() == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"payload": "{"}, "not valid JSON"),
        ({"payload": "[]"}, "Must be of type object."),
        ({"payload": '{"steps": 99}'}, "/steps: "),
        ({"priority": "12"}, "less than or equal to 9"),
        ({"callback_url": "http://169.254.169.254/"}, "callback"),
    ],
)
def test_errors_are_shown_at_their_field(
    operator: Client, job: Job, changes: dict[str, str], text: str
) -> None:
    schema = {"type": "object", "properties": {"steps": {"type": "integer", "maximum": 50}}}
    ModelConfig.objects.filter(name=job.model).update(payload_schema=schema)
    answer = send(operator, job, **changes)
    assert answer.status_code == 200
    (name,) = changes
    assert text in str(answer.context["form"].errors[name])
    assert not Job.objects.exclude(rerun_of=None).exists()


def test_a_long_payload_is_not_put_into_the_page(
    operator: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerun, "MAX_EDITED_BYTES", 10)
    page = operator.get(address(job)).content.decode()
    assert "too long to edit" in page
    assert "a sunset" not in page
    send(operator, job, priority=1)
    assert (new_job(job).payload, new_job(job).priority) == (job.payload, 1)


def test_the_button_needs_the_permission_for_payloads(viewer: Client, operator: Client, job: Job) -> None:
    page = reverse("admin:jobs_job_change", args=[job.id])
    assert address(job) in operator.get(page).content.decode()
    assert address(job) not in viewer.get(page).content.decode()
    assert viewer.get(address(job)).status_code == 403
    button = reverse("admin:jobs_job_rerun_one", args=[job.id])
    assert viewer.post(button, {"_form_submitted": "on"}).status_code == 403
    answer = operator.post(button, {"_form_submitted": "on"}, headers={"HX-Request": "true"})
    assert answer["HX-Redirect"] == reverse("admin:jobs_job_change", args=[new_job(job).id])


def test_a_removed_job_is_not_found(operator: Client, job: Job) -> None:
    there = address(job)
    Job.objects.filter(id=job.id).delete()
    assert operator.get(there).status_code == 404
