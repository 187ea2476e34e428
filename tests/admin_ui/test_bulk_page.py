"""Bulk actions: counted first, run in a bounded number of steps, never on more jobs than were counted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from admin_ui.pages import bulk
from admin_ui.pages.bulk import query_of_list
from foundation.ids import new_id
from gpus.models import AuditEntry
from jobs.models import Job, Tenant
from jobs.operations.bulk import BulkAction
from tests.admin_ui.rows import NOW, fill

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("some", "fake_ports")]


@pytest.fixture
def some(db: None) -> None:
    fill(jobs=36)  # six dead letters, of two models and three tenants
    Job.objects.filter(state="failed").update(error_fingerprint="f" * 16)


def counted(client: Client, **query: Any) -> str:
    return client.get(reverse("admin:jobs_job_bulk"), query).content.decode()


def step(client: Client, **values: Any) -> str:
    numbers = {"total": 6, "done": 0, "refused": 0}
    answer = client.post(reverse("admin:jobs_job_bulk_step"), {"action": "retry_jobs", **numbers, **values})
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


def hidden(page: str) -> dict[str, str]:
    """The hidden fields that the progress sends with the next step."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))


def states() -> dict[str, int]:
    rows = Job.objects.values_list("state", flat=True)
    return {state: list(rows).count(state) for state in ("failed", "queued", "cancelled")}


def test_counting_changes_nothing(operator: Client) -> None:
    before = states()
    assert "<b>6</b> dead letters match" in counted(operator, action="retry_jobs")
    assert "<b>6</b> dead letters match" in counted(operator, action="dismiss_jobs", fingerprint="f" * 16)
    of_zimg = Job.objects.filter(state="failed", model="zimg").count()
    assert f"<b>{of_zimg}</b> dead letters match" in counted(operator, action="retry_jobs", model="zimg")
    assert "Nothing matches" in counted(operator, action="retry_jobs", error_code="poison")
    assert "<b>6</b> jobs match" in counted(operator, action="cancel_jobs", state="queued")
    assert states() == before
    assert not AuditEntry.objects.filter(actor="user:operators").exists()


def test_an_invalid_form_counts_nothing(operator: Client) -> None:
    page = counted(operator, action="retry_jobs", tenant="unknown", created_after="yesterday")
    assert "No tenant has this name." in page
    assert "Enter a valid date/time." in page
    assert "match" not in re.sub(r'(?s).*"page-title">', "", page).split("Count first")[0]


@pytest.fixture
def many() -> int:
    """So many dead letters that they take two steps."""
    like = Job.objects.filter(state="failed").order_by("id")[0]
    fields = {field.attname: getattr(like, field.attname) for field in Job._meta.concrete_fields}
    Job.objects.bulk_create(Job(**{**fields, "id": new_id()}) for _ in range(bulk.STEP))
    return states()["failed"]


def test_steps_continue_until_no_job_remains(operator: Client, many: int) -> None:
    first = step(operator, total=many)
    assert 'hx-trigger="load' in first
    assert f"<b>{bulk.STEP}</b> of {many}" in first
    assert states()["failed"] == many - bulk.STEP
    values = {key: value for key, value in hidden(first).items() if key != "csrfmiddlewaretoken"}
    entry = values.pop("entries")
    assert values == {
        "action": "retry_jobs",
        "total": str(many),
        "done": str(bulk.STEP),
        "refused": "0",
    }
    last = step(operator, **values, entries=entry)
    assert reverse("admin:jobs_job_bulk_step") not in last
    assert f"Done: <b>{many}</b> of {many}" in last
    assert states()["failed"] == 0
    entries = AuditEntry.objects.filter(action="retry_jobs").order_by("id")
    assert [(entry.actor, entry.detail["jobs"]) for entry in entries] == [
        ("user:operators", bulk.STEP),
        ("user:operators", many - bulk.STEP),
    ]


def test_the_last_step_shows_what_became_of_the_jobs(operator: Client, many: int) -> None:
    """ "Done: 106 of 106 retried" alone would hide that some failed again at once."""
    last = step(operator, **hidden(step(operator, total=many)))
    address = re.search(r'hx-get="([^"]+retried/[^"]+)"', last)
    assert address is not None
    retried = list(Job.objects.filter(round=2).order_by("id"))
    assert len(retried) == many
    for job, state in zip(retried, ("failed", "failed", "completed"), strict=False):
        Job.objects.filter(id=job.id).update(
            state=state, error_code="bad_input", error_message="too many steps\n\nTraceback", finished_at=NOW
        )
    part = operator.get(address[1], headers={"HX-Request": "true"}).content.decode()
    assert f"{many} retried: 1 completed, 2 failed again, {many - 3} not finished yet." in part
    assert "data-fresh" in part, "it is updated until all have ended"
    assert "<html" not in part
    listed = list(dict.fromkeys(re.findall(r"[0-9A-Z]{26}", part)))
    assert set(listed[:2]) == {job.id for job in retried[:2]}, "those that failed again come first"
    assert "too many steps" in part
    assert "Traceback" not in part
    Job.objects.filter(round=2).update(state="completed", finished_at=NOW)
    assert "data-fresh" not in operator.get(address[1], headers={"HX-Request": "true"}).content.decode()


@pytest.mark.parametrize("entries", ["x", "1,2,three", ",".join(map(str, range(99)))])
def test_unreadable_entries_are_not_found(operator: Client, entries: str) -> None:
    assert operator.get(reverse("admin:jobs_job_retried"), {"entries": entries}).status_code == 404


def test_selected_dead_letters_are_retried_and_followed(viewer: Client, operator: Client) -> None:
    ids = list(Job.objects.filter(state="failed").values_list("id", flat=True)[:2])
    answer = operator.post(
        reverse("admin:admin_ui_deadletter_changelist"),
        {"action": "retry_jobs", "_selected_action": ids, "index": 0},
    )
    assert answer.status_code == 302
    page = operator.get(answer.url).content.decode()
    assert "2 retried: 2 not finished yet." in page
    assert "2 back in the queue." in page
    assert all(job_id in page for job_id in ids)
    assert viewer.get(answer.url).status_code == 200


def test_no_more_jobs_are_changed_than_were_counted(operator: Client) -> None:
    """A job that is retried and fails again at once matches again, so the steps would never end."""
    page = step(operator, total=5, done=3)
    assert states()["failed"] == 4
    assert "Done: <b>5</b> of 5" in page
    assert "4 match now" in page


def test_a_step_that_finds_no_job_is_the_last(operator: Client) -> None:
    page = step(operator, total=9, error_code="poison")
    assert "hx-trigger" not in page
    assert "Done: <b>0</b> of 9" in page


def test_dismiss_and_cancel_change_the_jobs_of_the_filter(operator: Client) -> None:
    tenant = Tenant.objects.get(name="acme")
    mine = Job.objects.filter(state="failed", tenant=tenant).count()
    step(operator, action="dismiss_jobs", tenant="acme")
    dismissed = Job.objects.exclude(dismissed_at=None)
    assert set(dismissed.values_list("tenant", flat=True)) <= {tenant.pk}
    assert dismissed.count() == mine
    step(operator, action="cancel_jobs", state="queued")
    assert states()["queued"] == 0
    assert states()["cancelled"] == 12


@pytest.mark.parametrize(
    "values", [{"action": "delete"}, {"total": "many"}, {"done": "-1"}, {"state": "x"}, {"entries": "1,x"}]
)
def test_an_invalid_step_is_refused(operator: Client, values: dict[str, str]) -> None:
    numbers = {"action": "retry_jobs", "total": 6, "done": 0, "refused": 0}
    assert operator.post(reverse("admin:jobs_job_bulk_step"), numbers | values).status_code == 400
    assert operator.get(reverse("admin:jobs_job_bulk_step")).status_code == 405
    assert states()["failed"] == 6


def test_a_viewer_has_neither_button_nor_page(viewer: Client) -> None:
    assert viewer.get(reverse("admin:jobs_job_bulk")).status_code == 403
    assert viewer.post(reverse("admin:jobs_job_bulk_step"), {"action": "retry_jobs"}).status_code == 403
    groups = viewer.get(reverse("admin:admin_ui_deadletter_groups")).content.decode()
    assert "timeout" in groups
    for page in (groups, viewer.get(reverse("admin:admin_ui_deadletter_changelist")).content.decode()):
        assert "Retry" not in page
        assert "bulk" not in page


def test_groups_link_to_their_bulk_actions_and_to_their_list(operator: Client) -> None:
    groups = operator.get(reverse("admin:admin_ui_deadletter_groups")).content.decode()
    assert "<b>6</b>" in groups
    assert f"action=retry_jobs&amp;fingerprint={'f' * 16}" in groups
    listed = operator.get(reverse("admin:admin_ui_deadletter_changelist"), {"error_fingerprint": "f" * 16})
    assert len(listed.context["cl"].result_list) == 6
    listed = operator.get(reverse("admin:admin_ui_deadletter_changelist"), {"error_fingerprint": "0" * 16})
    assert listed.context["cl"].result_list == []


def test_a_lists_filter_becomes_the_bulk_pages_query(db: None) -> None:
    acme = Tenant.objects.get(name="acme")
    filters = {
        "model": "flux",
        "error_code": "timeout",
        "tenant__id__exact": str(acme.pk),
        "created_at_from_0": "2030-01-01",
        "created_at_from_1": "12:00:00",
        "o": "1",
    }
    assert query_of_list(filters, BulkAction.RETRY) == (
        "action=retry_jobs&model=flux&error_code=timeout&tenant=acme&created_after=2030-01-01T12%3A00%3A00"
    )
    assert query_of_list({"pool": "flux"}, BulkAction.RETRY) is None
    assert query_of_list({"q": "night"}, BulkAction.RETRY) is None
    assert query_of_list({"tenant__id__exact": "abc"}, BulkAction.RETRY) is None


def test_a_list_with_an_invalid_filter_redirects(operator: Client) -> None:
    answer = operator.get(reverse("admin:jobs_job_changelist"), {"tenant__id__exact": "abc"})
    assert answer.status_code == 302
