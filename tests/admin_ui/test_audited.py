"""Who saved, switched or deleted something in the admin is on record, and no secret with it."""

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

from .conftest import World
from .rows import fill
from .test_clients import keys_form
from .test_fleet import model_form, placement_form, server_form

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("world")]


@pytest.fixture(autouse=True)
def some(db: None) -> None:
    fill(jobs=6)
    QuerySet(AuditEntry).all()._raw_delete("default")  # no way that the model offers


def last() -> AuditEntry:
    entry = AuditEntry.objects.order_by("-id").first()
    assert entry is not None
    return entry


def deeds() -> list[tuple[str, str, str]]:
    return list(AuditEntry.objects.order_by("id").values_list("actor", "action", "target"))


def test_a_saved_server_is_told_with_what_it_was(operator: Client) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    secret = {"request_headers": '{"Authorization": "Bearer s3cret"}'}
    operator.post(page, server_form(host="box-1", **secret))
    assert deeds() == [("user:operators", "change_server", "server:flux-server-1")]
    assert last().detail["values"] == {"host": [None, "box-1"]}
    assert "s3cret" not in str(last().detail)
    operator.post(page, server_form(host="box-1"))
    assert len(deeds()) == 1, "saved as it was"


def test_a_new_server_is_told(operator: Client) -> None:
    form = server_form(name="flux-server-3", pool="flux") | placement_form("flux", "http://10.0.0.3/generate")
    operator.post(reverse("admin:gpus_server_add"), form)
    assert deeds() == [("user:operators", "add_server", "server:flux-server-3")]


def test_an_endpoint_is_told_with_what_it_was(operator: Client) -> None:
    row = Placement.objects.get(server="flux-server-1")
    was = row.endpoint
    form = {"endpoint": "http://10.9.9.9/a"}
    operator.post(reverse("admin:gpus_placement_change", args=[row.pk]), form)
    assert last().detail["values"] == {"endpoint": [was, "http://10.9.9.9/a"]}
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    inline = placement_form("flux", "http://10.9.9.9/b")
    inline |= {
        "placements-INITIAL_FORMS": 1,
        "placements-0-id": row.pk,
        "placements-0-server": "flux-server-1",
    }
    operator.post(page, server_form(**inline))
    told = f"{row} endpoint"
    assert last().detail["values"] == {told: ["http://10.9.9.9/a", "http://10.9.9.9/b"]}
    operator.post(page, server_form(**inline | {"placements-0-DELETE": "on"}))
    assert last().detail["values"] == {told: ["http://10.9.9.9/b", None]}
    operator.post(page, server_form(**placement_form("flux", "http://10.9.9.9/c")))
    assert last().detail["values"] == {told: [None, "http://10.9.9.9/c"]}


def test_a_keys_end_is_told(operator: Client) -> None:
    key = ApiKey.objects.order_by("pk")[0]
    form = {"name": key.name, "expiry_date_0": "2031-01-01", "expiry_date_1": "00:00:00", "revoked": "on"}
    operator.post(reverse("admin:jobs_apikey_change", args=[key.pk]), form)
    assert last().detail["values"] == {
        "expiry_date": [None, "2031-01-01 00:00:00+00:00"],
        "revoked": [False, True],
    }


def test_a_changed_pool_is_the_next_version_of_all_its_models(operator: Client) -> None:
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


def test_servers_are_switched_and_removed_in_the_actors_name(operator: Client) -> None:
    chosen = {"action": "switch_off", "_selected_action": ["flux-server-1"], "post": "yes"}
    operator.post(reverse("admin:gpus_server_changelist"), chosen)
    operator.post(reverse("admin:gpus_server_delete", args=["flux-server-1"]), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": ["zimg-server-1"], "post": "yes"}
    operator.post(reverse("admin:gpus_server_changelist"), chosen)
    assert deeds() == [
        ("user:operators", "switch_server", "server:flux-server-1"),
        ("user:operators", "remove_server", "server:flux-server-1"),
        ("user:operators", "remove_server", "server:zimg-server-1"),
    ]


def test_a_saved_model_has_its_next_version(operator: Client) -> None:
    page = reverse("admin:gpus_modelconfig_change", args=["zimg"])
    operator.post(page, model_form(max_retries=3))
    operator.post(page, model_form(max_retries=3))
    versions = ConfigVersion.objects.filter(model="zimg").order_by("number")
    assert [(row.actor, row.fields["max_retries"]) for row in versions] == [
        ("unknown", 50),
        ("user:operators", 3),
    ]
    assert ("user:operators", "change_modelconfig", "model:zimg") in deeds()


def test_a_model_made_here_has_its_first_version(operator: Client) -> None:
    operator.post(reverse("admin:gpus_modelconfig_add"), model_form(name="new", pool="zimg", max_retries=4))
    assert ModelConfig.objects.filter(name="new").exists()
    [version] = ConfigVersion.objects.filter(model="new")
    assert (version.number, version.fields["max_retries"]) == (1, 4)


def test_what_is_deleted_is_told(operator: Client) -> None:
    rows = Placement.objects.filter(server="flux-server-1") | Placement.objects.filter(server="flux-server-2")
    one, other = rows.order_by("pk")
    operator.post(reverse("admin:gpus_placement_delete", args=[one.pk]), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"}
    operator.post(reverse("admin:gpus_placement_changelist"), chosen)
    assert not rows.exists()
    assert [(action, target) for _, action, target in deeds()] == [
        ("delete_placement", f"placement:{one}"),
        ("delete_placement", f"placement:{other}"),
    ]


def test_tenants_and_keys_are_told_without_their_secrets(operator: Client) -> None:
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
    assert [(action, target) for _, action, target in deeds()] == [
        ("add_tenant", "tenant:hooli"),
        ("change_tenant", "tenant:hooli"),
        ("renew_webhook_secret", "tenant:hooli"),
        ("add_apikey", f"key:{key.prefix}"),
        ("revoke_key", f"key:{key.prefix}"),
    ]
    told = str(list(AuditEntry.objects.values_list("detail", flat=True)))
    assert "whsec_" not in told
    assert key.hashed_key not in told


def test_what_is_done_to_people_is_told(boss: Client) -> None:
    user = User.objects.create_user("ada", password="correct horse")
    form = {"usable_password": "true", "password1": "battery staple 9", "password2": "battery staple 9"}
    boss.post(reverse("admin:auth_user_password_change", args=[user.pk]), form)
    assert deeds() == [("user:boss", "change_user", "user:ada")]
    assert "battery" not in str(last().detail)


def test_nothing_is_told_of_what_was_not_done(viewer: Client) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    assert viewer.post(page, server_form(slots=7)).status_code == 403
    chosen = {"action": "switch_off", "_selected_action": ["flux-server-1"], "post": "yes"}
    viewer.post(reverse("admin:gpus_server_changelist"), chosen)
    assert (Server.objects.get(name="flux-server-1").desired, deeds()) == ("on", [])


def test_pauses_end_by_the_service(operator: Client, world: World) -> None:
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
    assert {target for _, _, target in deeds()} == {"model:retired", "system:all", "tenant:acme"}
    assert {server.desired for server in world.leases.servers} == {DesiredState.ON}


def test_viewers_end_no_pause(viewer: Client) -> None:
    chosen = {"action": "resume_chosen", "_selected_action": [Pause.objects.get().pk]}
    viewer.post(reverse("admin:gpus_pause_changelist"), chosen)
    assert Pause.objects.exists()
