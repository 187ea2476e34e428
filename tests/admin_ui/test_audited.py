"""Audit entries of changes in the admin: actor, action, target and values, but no secrets."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse

from gpus.models import AuditEntry, ConfigVersion, ModelConfig, Pause, Placement, Server
from gpus.protocol import DesiredState
from jobs.models import ApiKey, Tenant
from tests.admin_ui.forms import model_form, placement_form, server_form
from tests.admin_ui.rows import fill
from tests.support.admin_ports import FakePorts
from tests.support.key_forms import keys_form

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]


@pytest.fixture(autouse=True)
def some(db: None) -> None:
    fill(jobs=6)
    QuerySet(AuditEntry).all()._raw_delete("default")  # the model itself forbids deletes


def last() -> AuditEntry:
    entry = AuditEntry.objects.order_by("-id").first()
    assert entry is not None
    return entry


def entries() -> list[tuple[str, str, str]]:
    return list(AuditEntry.objects.order_by("id").values_list("actor", "action", "target"))


def test_a_saved_server_is_recorded_with_its_old_values(operator: Client) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    secret = {"request_headers": '{"Authorization": "Bearer s3cret"}'}
    operator.post(page, server_form(host="box-1", **secret))
    assert entries() == [("user:operators", "change_server", "server:flux-server-1")]
    assert last().detail["values"] == {"host": [None, "box-1"]}
    assert "s3cret" not in str(last().detail)
    operator.post(page, server_form(host="box-1"))
    assert len(entries()) == 1, "saved without a change"


def test_a_new_server_is_recorded(operator: Client) -> None:
    form = server_form(name="flux-server-3", pool="flux") | placement_form("flux", "http://10.0.0.3/generate")
    operator.post(reverse("admin:gpus_server_add"), form)
    assert entries() == [("user:operators", "add_server", "server:flux-server-3")]


def test_an_endpoint_is_recorded_with_its_old_value(operator: Client) -> None:
    row = Placement.objects.get(server="flux-server-1")
    before = row.endpoint
    form = {"endpoint": "http://10.9.9.9/a"}
    operator.post(reverse("admin:gpus_placement_change", args=[row.pk]), form)
    assert last().detail["values"] == {"endpoint": [before, "http://10.9.9.9/a"]}
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    inline = placement_form("flux", "http://10.9.9.9/b")
    inline |= {
        "placements-INITIAL_FORMS": 1,
        "placements-0-id": row.pk,
        "placements-0-server": "flux-server-1",
    }
    operator.post(page, server_form(**inline))
    name = f"{row} endpoint"
    assert last().detail["values"] == {name: ["http://10.9.9.9/a", "http://10.9.9.9/b"]}
    operator.post(page, server_form(**inline | {"placements-0-DELETE": "on"}))
    assert last().detail["values"] == {name: ["http://10.9.9.9/b", None]}
    operator.post(page, server_form(**placement_form("flux", "http://10.9.9.9/c")))
    assert last().detail["values"] == {name: [None, "http://10.9.9.9/c"]}


def test_expiry_and_revocation_of_a_key_are_recorded(operator: Client) -> None:
    key = ApiKey.objects.order_by("pk")[0]
    form = {"name": key.name, "expiry_date_0": "2031-01-01", "expiry_date_1": "00:00:00", "revoked": "on"}
    operator.post(reverse("admin:jobs_apikey_change", args=[key.pk]), form)
    assert last().detail["values"] == {
        "expiry_date": [None, "2031-01-01 00:00:00+00:00"],
        "revoked": [False, True],
    }


def test_a_changed_pool_adds_a_version_to_each_of_its_models(operator: Client) -> None:
    ModelConfig.objects.create(name="zimg-2", pool_id="zimg")
    page, form = reverse("admin:gpus_pool_change", args=["zimg"]), {"affinity_patience_seconds": 5}
    for algorithm in ("fifo", "fifo", "fair"):
        operator.post(page, form | {"algorithm": algorithm})
    for name in ("zimg", "zimg-2"):
        versions = ConfigVersion.objects.filter(model=name).order_by("number")
        assert [(row.actor, row.fields["queue_algorithm"]) for row in versions] == [
            ("unknown", "fair"),
            ("user:operators", "fifo"),
            ("user:operators", "fair"),
        ]


def test_switched_and_removed_servers_are_recorded_with_the_actor(operator: Client) -> None:
    chosen = {"action": "switch_off", "_selected_action": ["flux-server-1"], "post": "yes"}
    operator.post(reverse("admin:gpus_server_changelist"), chosen)
    operator.post(reverse("admin:gpus_server_delete", args=["flux-server-1"]), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": ["zimg-server-1"], "post": "yes"}
    operator.post(reverse("admin:gpus_server_changelist"), chosen)
    assert entries() == [
        ("user:operators", "switch_server", "server:flux-server-1"),
        ("user:operators", "remove_server", "server:flux-server-1"),
        ("user:operators", "remove_server", "server:zimg-server-1"),
    ]


def test_a_saved_model_gets_a_new_version(operator: Client) -> None:
    page = reverse("admin:gpus_modelconfig_change", args=["zimg"])
    operator.post(page, model_form(max_retries=3))
    operator.post(page, model_form(max_retries=3))
    versions = ConfigVersion.objects.filter(model="zimg").order_by("number")
    assert [(row.actor, row.fields["max_retries"]) for row in versions] == [
        ("unknown", 50),
        ("user:operators", 3),
    ]
    assert ("user:operators", "change_modelconfig", "model:zimg") in entries()


def test_a_new_model_gets_its_first_version(operator: Client) -> None:
    operator.post(reverse("admin:gpus_modelconfig_add"), model_form(name="new", pool="zimg", max_retries=4))
    assert ModelConfig.objects.filter(name="new").exists()
    [version] = ConfigVersion.objects.filter(model="new")
    assert (version.number, version.fields["max_retries"]) == (1, 4)


def test_deleted_placements_are_recorded(operator: Client) -> None:
    rows = Placement.objects.filter(server="flux-server-1") | Placement.objects.filter(server="flux-server-2")
    first, second = rows.order_by("pk")
    operator.post(reverse("admin:gpus_placement_delete", args=[first.pk]), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [second.pk], "post": "yes"}
    operator.post(reverse("admin:gpus_placement_changelist"), chosen)
    assert not rows.exists()
    assert [(action, target) for _, action, target in entries()] == [
        ("delete_placement", f"placement:{first}"),
        ("delete_placement", f"placement:{second}"),
    ]


def test_tenants_and_keys_are_recorded_without_their_secrets(operator: Client) -> None:
    operator.post(reverse("admin:jobs_tenant_add"), keys_form(name="hooli", weight=2, highest_band="normal"))
    tenant = Tenant.objects.get(name="hooli")
    form = keys_form(name="hooli", weight=3, highest_band="normal")
    operator.post(reverse("admin:jobs_tenant_change", args=[tenant.pk]), form)
    assert last().detail["values"] == {"weight": [2.0, 3.0]}
    chosen = {"action": "renew_secrets", "_selected_action": [tenant.pk], "post": "yes"}
    operator.post(reverse("admin:jobs_tenant_changelist"), chosen)
    operator.post(reverse("admin:jobs_apikey_add"), {"name": "laptop", "tenant": tenant.pk, "kind": "tenant"})
    key = ApiKey.objects.get(name="laptop")
    chosen = {"action": "revoke_keys", "_selected_action": [key.pk], "post": "yes"}
    operator.post(reverse("admin:jobs_apikey_changelist"), chosen)
    assert [(action, target) for _, action, target in entries()] == [
        ("add_tenant", "tenant:hooli"),
        ("change_tenant", "tenant:hooli"),
        ("renew_webhook_secret", "tenant:hooli"),
        ("add_apikey", f"key:{key.prefix}"),
        ("revoke_key", f"key:{key.prefix}"),
    ]
    recorded = str(list(AuditEntry.objects.values_list("detail", flat=True)))
    assert "whsec_" not in recorded
    assert key.hashed_key not in recorded


def test_a_changed_password_is_recorded_without_the_password(boss: Client) -> None:
    user = User.objects.create_user("ada", password="correct horse")
    form = {"usable_password": "true", "password1": "battery staple 9", "password2": "battery staple 9"}
    boss.post(reverse("admin:auth_user_password_change", args=[user.pk]), form)
    assert entries() == [("user:boss", "change_user", "user:ada")]
    assert "battery" not in str(last().detail)


def test_refused_changes_are_not_recorded(viewer: Client) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    assert viewer.post(page, server_form(slots=7)).status_code == 403
    chosen = {"action": "switch_off", "_selected_action": ["flux-server-1"], "post": "yes"}
    viewer.post(reverse("admin:gpus_server_changelist"), chosen)
    assert (Server.objects.get(name="flux-server-1").desired, entries()) == ("on", [])


def test_resuming_a_pause_calls_the_service(operator: Client, fake_ports: FakePorts) -> None:
    tenant = Tenant.objects.get(name="acme")
    for kind, name in (("system", ""), ("tenant", str(tenant.pk))):
        Pause.objects.create(kind=kind, name=name, since="2030-01-01T00:00Z", actor="user:boss")
    listed = operator.get(reverse("admin:gpus_pause_changelist")).content.decode()
    assert "acme" in listed
    chosen: dict[str, Any] = {
        "action": "resume_chosen",
        "_selected_action": list(Pause.objects.values_list("pk", flat=True)),
    }
    operator.post(reverse("admin:gpus_pause_changelist"), chosen)
    assert not Pause.objects.exists()
    assert {target for _, _, target in entries()} == {"model:retired", "system:all", "tenant:acme"}
    assert {server.desired for server in fake_ports.leases.servers} == {DesiredState.ON}


def test_a_viewer_cannot_resume_a_pause(viewer: Client) -> None:
    chosen = {"action": "resume_chosen", "_selected_action": [Pause.objects.get().pk]}
    viewer.post(reverse("admin:gpus_pause_changelist"), chosen)
    assert Pause.objects.exists()
