"""Tenants, API keys and groups. Secrets are shown once, and stored so that they can't be shown again."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from admin_ui.pages.clients import NO_MODELS
from admin_ui.parts.groups import write_groups
from gpus.models import AuditEntry, ModelConfig, Pool
from gpus.protocol import TenantSpec
from jobs.callbacks.message import current_secret
from jobs.models import ApiKey, Tenant
from jobs.operations.tenants import create_key
from tests.support.admin_ports import FakePorts
from tests.support.key_forms import keys_form

Commits = Callable[..., AbstractContextManager[Any]]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]


def shown_in(answer: Any) -> str:
    [message] = [str(message) for message in get_messages(answer.wsgi_request) if "only now" in str(message)]
    found = re.search("<code>(.*)</code>", message)
    assert found
    return found[1]


def test_a_new_tenant_gets_a_webhook_secret_that_is_shown_once(operator: Client) -> None:
    answer = operator.post(
        reverse("admin:jobs_tenant_add"), keys_form(name="acme", weight=2, highest_band="normal")
    )
    tenant = Tenant.objects.get(name="acme")
    assert shown_in(answer) == current_secret(tenant)
    page = operator.get(
        reverse("admin:jobs_tenant_change", args=[tenant.pk])
    ).content.decode()  # with the message
    page = operator.get(reverse("admin:jobs_tenant_change", args=[tenant.pk])).content.decode()
    assert "whsec_" not in page
    assert tenant.webhook_secret_encrypted not in page


def test_a_saved_tenant_keeps_its_secret_and_its_rules_reach_redis(
    operator: Client, fake_ports: FakePorts, django_capture_on_commit_callbacks: Commits
) -> None:
    Pool.objects.create(name="zimg")
    tenant = Tenant.objects.create(name="acme")
    before = current_secret(tenant)
    page = reverse("admin:jobs_tenant_change", args=[tenant.pk])
    with django_capture_on_commit_callbacks(execute=True):
        form = keys_form(name="acme", weight=3, highest_band="bulk", max_running=2)
        assert operator.post(page, form).status_code == 302
    assert current_secret(Tenant.objects.get(name="acme")) == before
    assert fake_ports.leases.tenants == {str(tenant.pk): TenantSpec(str(tenant.pk), 3.0, "bulk", 2)}
    entry = AuditEntry.objects.get(action="change_tenant")
    assert entry.detail["values"] == {
        "weight": [1.0, 3.0],
        "highest_band": ["normal", "bulk"],
        "max_running": [None, 2],
    }


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("weight", 0),
        ("weight", -1),
        ("weight", "nan"),
        ("weight", 1e9),
        ("max_running", 0),
        ("highest_band", "top"),
    ],
)
def test_invalid_rules_are_refused_with_an_error_at_the_field(
    operator: Client, rule: str, value: object
) -> None:
    form = keys_form(name="acme", **{"weight": 1, "highest_band": "normal", rule: value})
    answer = operator.post(reverse("admin:jobs_tenant_add"), form)
    assert answer.status_code == 200
    assert set(answer.context["adminform"].form.errors) == {rule}
    assert not Tenant.objects.exists()


def test_a_webhook_secret_is_renewed_on_request(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    before = current_secret(tenant)
    chosen = {"action": "renew_secrets", "_selected_action": [tenant.pk], "post": "yes"}
    shown = shown_in(operator.post(reverse("admin:jobs_tenant_changelist"), chosen))
    assert shown == current_secret(Tenant.objects.get(name="acme")) != before


def test_a_tenant_is_not_deleted(boss: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    assert (
        boss.post(reverse("admin:jobs_tenant_delete", args=[tenant.pk]), {"post": "yes"}).status_code == 403
    )


def test_a_new_key_is_shown_once_and_works(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    form = {"name": "laptop", "tenant": tenant.pk, "kind": "tenant"}
    shown = shown_in(operator.post(reverse("admin:jobs_apikey_add"), form))
    assert ApiKey.objects.is_valid(shown)
    key = ApiKey.objects.get(name="laptop")
    assert (key.tenant, key.kind) == (tenant, "tenant")
    operator.get(reverse("admin:jobs_apikey_changelist"))  # with the message
    for page in (reverse("admin:jobs_apikey_changelist"), reverse("admin:jobs_apikey_change", args=[key.pk])):
        text = operator.get(page).content.decode()
        assert shown.partition(".")[2] not in text


def test_a_key_stays_with_its_tenant_and_kind(operator: Client) -> None:
    tenant, other = Tenant.objects.create(name="acme"), Tenant.objects.create(name="globex")
    key, _ = create_key(tenant, name="laptop")
    page = reverse("admin:jobs_apikey_change", args=[key.pk])
    operator.post(page, {"name": "desk", "tenant": other.pk, "kind": "operator"})
    key.refresh_from_db()
    assert (key.name, key.tenant, key.kind) == ("desk", tenant, "tenant")


def test_keys_are_revoked_for_good_and_not_deleted(boss: Client) -> None:
    key, text = create_key(Tenant.objects.create(name="acme"), name="laptop")
    chosen = {"action": "revoke_keys", "_selected_action": [key.pk], "post": "yes"}
    boss.post(reverse("admin:jobs_apikey_changelist"), chosen)
    assert not ApiKey.objects.is_valid(text)
    assert boss.post(reverse("admin:jobs_apikey_delete", args=[key.pk]), {"post": "yes"}).status_code == 403
    boss.post(reverse("admin:jobs_apikey_change", args=[key.pk]), {"name": "desk", "revoked": ""})
    key.refresh_from_db()
    assert (key.name, key.revoked) == ("laptop", True)


def test_both_groups_are_written_with_all_their_permissions() -> None:
    Group.objects.all().delete()
    write_groups()
    write_groups()
    viewers = set(Group.objects.get(name="viewers").permissions.values_list("codename", flat=True))
    operators = set(Group.objects.get(name="operators").permissions.values_list("codename", flat=True))
    assert all(codename.startswith("view_") for codename in viewers)
    assert {"view_job", "view_server", "view_deadletter"} <= viewers <= operators
    assert {"change_job", "change_callback", "add_server", "change_server", "add_apikey"} <= operators
    assert {"add_pause", "delete_pause", "view_auditentry", "view_configversion"} <= operators
    assert {name for name in operators if name.endswith(("_auditentry", "_configversion"))} <= viewers
    assert not {"delete_job", "add_job", "change_attempt", "delete_tenant", "change_user"} & operators


def test_migrating_writes_the_groups() -> None:
    assert Group.objects.filter(name__in=["viewers", "operators"]).count() == 2


def test_a_tenants_limits_are_saved_and_recorded(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    pool = Pool.objects.create(name="images")
    for name in ("zimg", "flux"):
        ModelConfig.objects.create(name=name, pool=pool)
    limits = {"max_queued": 5, "submits_per_second": 2.5, "submit_burst": 10, "daily_gpu_seconds": 60}
    values = keys_form(
        name="acme", weight=1, highest_band="normal", allowed_models=["zimg", "flux"], **limits
    )
    page = reverse("admin:jobs_tenant_change", args=[tenant.pk])
    assert operator.post(page, values).status_code == 302
    tenant.refresh_from_db()
    assert {name: getattr(tenant, name) for name in limits} == limits
    assert tenant.allowed_models == ["flux", "zimg"]
    recorded = AuditEntry.objects.order_by("-id")[0].detail["values"]
    assert (recorded["max_queued"], recorded["allowed_models"]) == ([None, 5], [None, ["flux", "zimg"]])
    assert "used today" in operator.get(page).content.decode()


@pytest.mark.parametrize("stored", [None, [], ["gone", "zimg"]], ids=str)
def test_saving_a_tenant_keeps_its_allowed_models(operator: Client, stored: list[str] | None) -> None:
    ModelConfig.objects.create(name="zimg", pool=Pool.objects.create(name="images"))
    tenant = Tenant.objects.create(name="acme", allowed_models=stored)
    page = reverse("admin:jobs_tenant_change", args=[tenant.pk])
    shown = operator.get(page).content.decode()
    ticked = re.findall(r'name="allowed_models" value="([^"]*)"[^>]*\schecked[\s>]', shown)
    assert ticked == ([NO_MODELS] if stored == [] else stored or [])
    form = keys_form(name="acme", weight=2, highest_band="normal", allowed_models=ticked)
    assert operator.post(page, form).status_code == 302
    tenant.refresh_from_db()
    assert (tenant.weight, tenant.allowed_models) == (2.0, stored)
    assert set(AuditEntry.objects.order_by("-id")[0].detail["values"]) == {"weight"}


@pytest.mark.parametrize("wrong", [
    {"max_queued": 0}, {"submits_per_second": 0}, {"submit_burst": 5}, {"daily_gpu_seconds": -1},
    {"allowed_models": "unknown"}, {"allowed_models": '["a b"]'}, {"allowed_models": ["zimg", NO_MODELS]},
])  # fmt: skip
def test_an_invalid_limit_is_refused(operator: Client, wrong: dict[str, Any]) -> None:
    ModelConfig.objects.create(name="zimg", pool=Pool.objects.create(name="images"))
    tenant = Tenant.objects.create(name="acme")
    page = reverse("admin:jobs_tenant_change", args=[tenant.pk])
    assert (
        operator.post(page, keys_form(name="acme", weight=1, highest_band="normal", **wrong)).status_code
        == 200
    )
    tenant.refresh_from_db()
    assert tenant.max_queued is tenant.submit_burst is tenant.allowed_models is None


def test_a_key_is_created_with_scopes_and_replaced(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    form = {"name": "ci", "tenant": tenant.pk, "kind": "tenant", "scopes": ["read"]}
    first = shown_in(operator.post(reverse("admin:jobs_apikey_add"), form))
    row = ApiKey.objects.get(prefix=first[:8])
    assert row.scopes == ["read"]
    operator.get(reverse("admin:jobs_apikey_changelist"))  # with the message
    chosen = {"action": "rotate_keys", "_selected_action": [row.pk], "post": "yes"}
    second = shown_in(operator.post(reverse("admin:jobs_apikey_changelist"), chosen))
    row.refresh_from_db()
    assert row.rotated_to == ApiKey.objects.get(prefix=second[:8])
    assert AuditEntry.objects.filter(action="rotate_key", target=f"key:{first[:8]}").exists()


def test_a_tenants_key_cannot_get_an_operators_scope(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    form = {"name": "ci", "tenant": tenant.pk, "kind": "tenant", "scopes": ["operate"]}
    assert operator.post(reverse("admin:jobs_apikey_add"), form).status_code == 200
    assert not ApiKey.objects.exists()


def seen_on(page: str, browser: Client) -> dict[str, str]:
    """Return the hidden inputs of a page with the values that it shows."""
    html = browser.get(page).content.decode()
    inputs = [dict(re.findall(r'([a-z]+)="([^"]*)"', tag)) for tag in re.findall("<input[^>]*>", html)]
    shown = {one["name"]: unescape(one.get("value", "")) for one in inputs if "name" in one}
    return {name: value for name, value in shown.items() if name.startswith("initial-")}


def test_a_page_that_was_open_keeps_what_others_changed_meanwhile(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    page = reverse("admin:jobs_tenant_change", args=[tenant.pk])
    seen = seen_on(page, operator)
    Tenant.objects.update(max_running=2, weight=7)
    form = keys_form(name="acme", weight=3, highest_band="normal", max_running="", **seen)
    assert operator.post(page, form).status_code == 302
    tenant.refresh_from_db()
    assert (tenant.weight, tenant.max_running) == (3.0, 2)
    entry = AuditEntry.objects.get(action="change_tenant")
    assert entry.detail["values"] == {"weight": [7.0, 3.0]}


@pytest.mark.parametrize("seen", [None, [], ["a", "b"]])
def test_a_page_that_was_open_keeps_the_models_that_others_changed(
    seen: list[str] | None, operator: Client
) -> None:
    pool = Pool.objects.create(name="zimg")
    for name in ("a", "b"):
        ModelConfig.objects.create(name=name, pool=pool, model_type="sync")
    tenant = Tenant.objects.create(name="acme", allowed_models=seen)
    page = reverse("admin:jobs_tenant_change", args=[tenant.pk])
    hidden = seen_on(page, operator)
    ticked = [NO_MODELS] if seen == [] else seen or []
    Tenant.objects.update(allowed_models=["a"])
    form = keys_form(name="acme", weight=3, highest_band="normal", allowed_models=ticked, **hidden)
    assert operator.post(page, form).status_code == 302
    tenant.refresh_from_db()
    assert (tenant.weight, tenant.allowed_models) == (3.0, ["a"])


def test_choices_that_the_user_changed_are_written(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme", allowed_models=["a", "b"])
    page = reverse("admin:jobs_tenant_change", args=[tenant.pk])
    hidden = seen_on(page, operator)
    form = keys_form(name="acme", weight=1, highest_band="normal", allowed_models=[NO_MODELS], **hidden)
    assert operator.post(page, form).status_code == 302
    tenant.refresh_from_db()
    assert tenant.allowed_models == []


def test_a_keys_page_that_was_open_keeps_the_scopes_that_others_changed(operator: Client) -> None:
    key, _ = create_key(Tenant.objects.create(name="acme"), "tenant", name="ci")
    page = reverse("admin:jobs_apikey_change", args=[key.pk])
    hidden = seen_on(page, operator)
    ApiKey.objects.update(scopes=["read"])
    assert operator.post(page, {"name": "new", **hidden}).status_code == 302
    key.refresh_from_db()
    assert (key.name, key.scopes) == ("new", ["read"])


def test_a_users_page_that_was_open_gives_no_group_back(admin_client: Client) -> None:
    write_groups()
    user = User.objects.create_user("kim", is_staff=True)
    groups = Group.objects.filter(name__in=("operators", "viewers"))
    user.groups.add(*groups)
    page = reverse("admin:auth_user_change", args=[user.pk])
    hidden = seen_on(page, admin_client)
    sent = {"username": "kim", "is_staff": "on", "is_active": "on", "email": "kim@example.org"}
    sent |= {"groups": [group.pk for group in groups]}
    sent |= {"date_joined_0": "2026-01-02", "date_joined_1": "03:04:05"}
    user.groups.remove(groups.get(name="operators"))
    answer = admin_client.post(page, {**hidden, **sent})
    assert answer.status_code == 302, answer.context["errors"]
    user.refresh_from_db()
    assert (user.email, [group.name for group in user.groups.all()]) == ("kim@example.org", ["viewers"])
