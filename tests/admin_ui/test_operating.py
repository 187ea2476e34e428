"""Actions call services, viewers have none, and history can't be edited."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.apps import apps
from django.contrib.messages import get_messages
from django.db.models import Model
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from admin_ui.actions import operations
from admin_ui.models import DeadLetter
from gpus.models import AuditEntry
from jobs.domain.states import JobState
from jobs.models import Attempt, Callback, CallbackTry, Event, Job
from tests.admin_ui.rows import fill
from tests.support.admin_ports import FakePorts

HISTORY = [Job, DeadLetter, Attempt, Event, Callback, CallbackTry]
pytestmark = pytest.mark.django_db


def name(model: type[Model]) -> str:
    return f"{model._meta.app_label}_{model._meta.model_name}"


def do(client: Client, model: type[Model], action: str, ids: list[str]) -> HttpResponse:
    return client.post(  # type: ignore[return-value]
        reverse(f"admin:{name(model)}_changelist"), {"action": action, "_selected_action": ids, "post": "yes"}
    )


def messages_of(response: HttpResponse) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]  # type: ignore[attr-defined]


def ids_of(state: JobState, count: int = 3) -> list[str]:
    return list(Job.objects.filter(state=state).order_by("id").values_list("id", flat=True)[:count])


@pytest.fixture
def some(db: None) -> None:
    fill(jobs=24)


@pytest.mark.usefixtures("some", "fake_ports")
def test_jobs_are_cancelled_by_the_service(operator: Client) -> None:
    waiting, running, over = (
        ids_of(JobState.QUEUED, 2),
        ids_of(JobState.RUNNING, 1),
        ids_of(JobState.COMPLETED, 1),
    )
    answer = do(operator, Job, "cancel_jobs", [*waiting, *running, *over])
    assert set(Job.objects.filter(id__in=waiting).values_list("state", flat=True)) == {"cancelled"}
    assert Job.objects.get(id=running[0]).cancel_requested_at is not None
    assert Job.objects.get(id=over[0]).state == "completed"
    assert messages_of(answer) == [
        "2 cancelled, 1 being cancelled.",
        "1 refused: The job has ended; it can't be cancelled.",
    ]
    assert Event.objects.filter(job_id=waiting[0], type="cancelled").exists()


@pytest.mark.usefixtures("some", "fake_ports")
def test_dead_letters_are_retried_and_dismissed_by_services(operator: Client) -> None:
    retried_id, dismissed_id = ids_of(JobState.FAILED, 2)
    do(operator, DeadLetter, "retry_jobs", [retried_id])
    answer = do(operator, DeadLetter, "dismiss_jobs", [dismissed_id])
    assert messages_of(answer) == ["1 back in the queue.", "1 dismissed."]
    retried = Job.objects.get(id=retried_id)
    assert (retried.state, retried.round) == ("queued", 2)
    assert Job.objects.get(id=dismissed_id).dismissed_at is not None


@pytest.mark.usefixtures("some")
def test_callbacks_are_sent_again_by_the_service(operator: Client, fake_ports: FakePorts) -> None:
    rows = Callback.objects.order_by("id")[:2]
    ids = [row.id for row in rows]
    before = datetime.now(UTC)
    assert messages_of(do(operator, Callback, "replay_callbacks", ids)) == ["2 due again."]
    for row in Callback.objects.filter(id__in=ids):
        assert (row.state, row.tries) == ("pending", 0)
        assert row.next_at is not None
        assert row.next_at >= before
    assert sorted(fake_ports.callbacks_woken) == sorted(ids)


@pytest.mark.usefixtures("some")
def test_a_callbacks_page_has_a_button_to_send_it_again(
    operator: Client, viewer: Client, fake_ports: FakePorts
) -> None:
    row = Callback.objects.order_by("id")[0]
    button = reverse("admin:jobs_callback_replay_one", args=[row.id])
    page = reverse("admin:jobs_callback_change", args=[row.id])
    assert button in operator.get(page).content.decode()
    assert button not in viewer.get(page).content.decode()
    assert viewer.post(button, {"_form_submitted": "on"}).status_code == 403
    assert operator.post(button, {"_form_submitted": "on"})["Location"] == page
    row.refresh_from_db()
    assert row.state == "pending"
    assert fake_ports.callbacks_woken == [row.id]


@pytest.mark.usefixtures("some", "fake_ports")
def test_one_click_changes_a_bounded_number_of_rows(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_AT_ONCE", 2)
    answer = do(operator, Job, "cancel_jobs", ids_of(JobState.QUEUED, 3))
    assert messages_of(answer) == ["Only the first 2 rows. Run it again for the rest.", "2 cancelled."]


@pytest.mark.usefixtures("some", "fake_ports")
def test_a_jobs_buttons_open_a_dialog_and_change_nothing_by_get(operator: Client) -> None:
    [job_id] = ids_of(JobState.QUEUED, 1)
    button = reverse("admin:jobs_job_cancel_one", args=[job_id])
    page = operator.get(reverse("admin:jobs_job_change", args=[job_id])).content.decode()
    assert button in page
    assert b"Cancel this job?" in operator.get(button).content
    assert Job.objects.get(id=job_id).state == "queued"
    answer = operator.post(button, {"_form_submitted": "on"}, headers={"HX-Request": "true"})
    assert answer["HX-Redirect"] == reverse("admin:jobs_job_change", args=[job_id])
    assert Job.objects.get(id=job_id).state == "cancelled"
    page = operator.get(reverse("admin:jobs_job_change", args=[job_id])).content.decode()
    assert button not in page


@pytest.mark.usefixtures("some", "fake_ports")
@pytest.mark.parametrize(("button", "state"), [("retry_one", "queued"), ("dismiss_one", "failed")])
def test_a_dead_letters_page_offers_retry_and_dismiss(operator: Client, button: str, state: str) -> None:
    [job_id] = ids_of(JobState.FAILED, 1)
    where = reverse(f"admin:jobs_job_{button}", args=[job_id])
    page = reverse("admin:jobs_job_change", args=[job_id])
    assert where in operator.get(page).content.decode()
    assert operator.post(where, {"_form_submitted": "on"}).status_code == 302
    job = Job.objects.get(id=job_id)
    assert job.state == state
    assert (job.dismissed_at is not None) is (button == "dismiss_one")
    assert where not in operator.get(page).content.decode()


@pytest.mark.usefixtures("some", "fake_ports")
def test_a_viewer_has_no_buttons_and_gets_403(viewer: Client) -> None:
    [queued], [failed] = ids_of(JobState.QUEUED, 1), ids_of(JobState.FAILED, 1)
    for model in (Job, DeadLetter, Callback):
        assert (
            "_selected_action" not in viewer.get(reverse(f"admin:{name(model)}_changelist")).content.decode()
        )
    page = viewer.get(reverse("admin:jobs_job_change", args=[queued])).content.decode()
    assert "cancel_one" not in page
    for button, job_id in (("cancel_one", queued), ("retry_one", failed), ("dismiss_one", failed)):
        where = reverse(f"admin:jobs_job_{button}", args=[job_id])
        assert viewer.get(where).status_code == 403
        assert viewer.post(where, {"_form_submitted": "on"}).status_code == 403
    do(viewer, Job, "cancel_jobs", [queued])
    do(viewer, DeadLetter, "retry_jobs", [failed])
    do(viewer, Callback, "replay_callbacks", list(Callback.objects.values_list("id", flat=True)[:1]))
    assert Job.objects.get(id=queued).state == "queued"
    assert Job.objects.get(id=failed).state == "failed"
    assert not Callback.objects.exclude(state="gave_up").exists()


@pytest.mark.usefixtures("some")
@pytest.mark.parametrize("model", HISTORY, ids=name)
def test_history_cannot_be_added_changed_or_deleted(boss: Client, model: type[Model]) -> None:
    row = model._default_manager.order_by("pk").first()
    assert row is not None
    assert boss.get(reverse(f"admin:{name(model)}_add")).status_code == 403
    assert boss.get(reverse(f"admin:{name(model)}_delete", args=[row.pk])).status_code == 403
    if model is not DeadLetter:
        assert (
            boss.post(reverse(f"admin:{name(model)}_change", args=[row.pk]), {"state": "x"}).status_code
            == 403
        )
    do(boss, model, "delete_selected", [str(row.pk)])
    assert model._default_manager.filter(pk=row.pk).exists()


@pytest.mark.usefixtures("some")
@pytest.mark.parametrize(
    "model", ["gpus_server", "gpus_modelconfig", "gpus_pool", "gpus_placement", "jobs_tenant", "jobs_apikey"]
)
def test_a_viewer_cannot_change_the_registry_tenants_or_keys(viewer: Client, model: str) -> None:
    row = apps.get_model(model.replace("_", "."))._default_manager.order_by("pk").first()
    assert row is not None
    change = reverse(f"admin:{model}_change", args=[row.pk])
    assert viewer.get(change).status_code == 200
    assert viewer.post(change, {}).status_code == 403
    assert viewer.get(reverse(f"admin:{model}_add")).status_code == 403
    assert viewer.get(reverse(f"admin:{model}_delete", args=[row.pk])).status_code == 403


@pytest.mark.database
@pytest.mark.usefixtures("some", "fake_ports")
def test_a_job_that_has_ended_is_erased_and_its_page_says_so(operator: Client, viewer: Client) -> None:
    over, running = ids_of(JobState.COMPLETED, 1)[0], ids_of(JobState.RUNNING, 1)[0]
    address = reverse("admin:jobs_job_erase_one", args=[over])
    page = reverse("admin:jobs_job_change", args=[over])
    assert viewer.post(address, {"_form_submitted": "on"}).status_code == 403
    assert b"Erase data" not in viewer.get(page).content
    operator.post(address, {"_form_submitted": "on"})
    assert AuditEntry.objects.get(action="erase_job_data").target == f"job:{over}"
    shown = operator.get(page).content.decode()
    assert "SHA-256 of what it was" in shown
    assert "a sunset" not in shown
    assert "Erase data" not in shown, "there is nothing left to erase"
    assert b"Erase data" not in operator.get(reverse("admin:jobs_job_change", args=[running])).content
