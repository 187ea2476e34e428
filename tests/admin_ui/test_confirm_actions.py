"""Actions on selected rows that show a confirmation page first."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from admin_ui.actions import operations
from gpus.models import Server
from jobs.models import ApiKey, Job, Tenant
from tests.admin_ui.rows import fill
from tests.support.form_fields import fields_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]
ACTIONS = {
    "gpus_server": ("switch_off", Server),
    "jobs_apikey": ("revoke_keys", ApiKey),
    "jobs_tenant": ("renew_secrets", Tenant),
    "jobs_job": ("cancel_jobs", Job),
    "admin_ui_deadletter": ("dismiss_jobs", Job),
}
CHANGED_FIELDS = {Server: ("desired",), ApiKey: ("revoked",), Tenant: ("webhook_secret_encrypted",)}


@pytest.fixture(autouse=True)
def some(db: None) -> None:
    fill(jobs=6)


def selected(page: str, count: int) -> dict[str, Any]:
    action, model = ACTIONS[page]
    rows = model._default_manager.order_by("pk")
    if page == "admin_ui_deadletter":
        rows = rows.filter(state="failed")
    elif page == "jobs_job":
        rows = rows.filter(state="queued")
    return {"action": action, "_selected_action": list(rows.values_list("pk", flat=True)[:count])}


def state_of(page: str) -> list[Any]:
    model = ACTIONS[page][1]
    fields = CHANGED_FIELDS.get(model, ("state", "dismissed_at"))
    return list(model._default_manager.order_by("pk").values_list(*fields))


@pytest.mark.parametrize("page", ACTIONS)
def test_an_action_runs_only_after_its_confirmation(operator: Client, page: str) -> None:
    url, before = reverse(f"admin:{page}_changelist"), state_of(page)
    confirmation = operator.post(url, selected(page, 1))
    assert confirmation.status_code == 200
    assert state_of(page) == before
    assert operator.post(url, fields_of(confirmation.content.decode())).status_code == 302
    changed = [now for now, was in zip(state_of(page), before, strict=True) if now != was]
    assert len(changed) == 1


def test_the_confirmation_lists_the_rows_and_keeps_the_filter(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_LISTED", 2)
    url = reverse("admin:gpus_server_changelist") + "?pool__name__exact=flux"
    chosen = selected("gpus_server", 1) | {"select_across": "1"}
    page = operator.post(url, chosen).content.decode()
    assert "and 6 more" in operator.post(url.partition("?")[0], chosen).content.decode()
    assert "<li>flux-server-1</li>" in page
    assert "zimg" not in page[page.index("content-main") :]
    operator.post(url, fields_of(page))
    switched = Server.objects.filter(desired="off").order_by("name").values_list("name", flat=True)
    assert list(switched) == ["flux-server-1", "flux-server-2"]


def test_a_viewer_gets_no_confirmation_page(viewer: Client) -> None:
    for page in ACTIONS:
        before = state_of(page)
        answer = viewer.post(reverse(f"admin:{page}_changelist"), selected(page, 1) | {"post": "yes"})
        assert state_of(page) == before
        assert b'name="post"' not in answer.content
