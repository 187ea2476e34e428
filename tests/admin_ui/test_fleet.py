"""Forms of the registry: validated by its rules, mirrored to Redis after the commit, secrets never shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import OperationalError, connection, transaction
from django.db.models import Model
from django.db.models.signals import pre_save
from django.test import Client
from django.urls import reverse

from admin_ui.pages.servers import ServerPages
from admin_ui.parts.live import LiveAdmin
from foundation.secrets import encrypt
from gpus.models import ConfigVersion, ModelConfig, Placement, Pool, QuarantinedSlot, Server
from gpus.protocol import DesiredState, QueueAlgorithm
from gpus.registry.queries import read_headers
from tests.admin_ui.forms import errors_of, model_form, placement_form, server_form
from tests.admin_ui.rows import NOW, fill
from tests.support.admin_ports import FakePorts

Commits = Callable[..., AbstractContextManager[Any]]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]


@pytest.fixture(autouse=True)
def some(db: None) -> None:
    fill(jobs=6)


def test_a_new_server_is_mirrored_after_the_commit(
    operator: Client, fake_ports: FakePorts, django_capture_on_commit_callbacks: Commits
) -> None:
    form = server_form(name="flux-server-3", pool="flux") | placement_form("flux", "http://10.0.0.3/generate")
    with django_capture_on_commit_callbacks() as waiting:
        assert operator.post(reverse("admin:gpus_server_add"), form).status_code == 302
    assert Server.objects.get(name="flux-server-3").slots == 2
    assert fake_ports.leases.servers == []
    for callback in waiting:
        callback()
    mirrored = {server.name: server for server in fake_ports.leases.servers}
    assert mirrored["flux-server-3"].models == ("flux",)
    assert any(wake.pool == "flux" for wake in fake_ports.wakes)


def test_a_changed_host_is_mirrored_after_the_commit(
    operator: Client, fake_ports: FakePorts, django_capture_on_commit_callbacks: Commits
) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    with django_capture_on_commit_callbacks(execute=True):
        assert operator.post(page, server_form(host="box-1")).status_code == 302
    assert {server.name: server.host for server in fake_ports.leases.servers}["flux-server-1"] == "box-1"


def test_a_stale_form_does_not_undo_a_switch(operator: Client) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    assert not {"slots", "desired"} & set(operator.get(page).context["adminform"].form.fields)
    Server.objects.update(desired="off", slots=3)
    assert operator.post(page, server_form(host="box-1", slots=2, desired="on")).status_code == 302
    saved = Server.objects.get(name="flux-server-1")
    assert (saved.desired, saved.slots, saved.host) == ("off", 3, "box-1")


def test_a_saved_server_keeps_its_name_and_pool(operator: Client) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    operator.post(page, server_form(name="other", pool="zimg"))
    assert Server.objects.get(name="flux-server-1").pool_id == "flux"
    assert not Server.objects.filter(name="other").exists()


def test_without_redis_a_server_is_saved_with_a_warning(
    operator: Client, fake_ports: FakePorts, django_capture_on_commit_callbacks: Commits
) -> None:
    fake_ports.leases.away = True
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    with django_capture_on_commit_callbacks(execute=True):
        answer = operator.post(page, server_form(host="box-1"))
    assert Server.objects.get(name="flux-server-1").host == "box-1"
    assert "Redis does not answer" in " ".join(str(message) for message in get_messages(answer.wsgi_request))


@pytest.mark.parametrize(
    ("action", "desired"),
    [("drain", DesiredState.DRAINING), ("switch_off", DesiredState.OFF), ("switch_on", DesiredState.ON)],
)
def test_servers_are_switched_by_the_service(
    operator: Client, fake_ports: FakePorts, action: str, desired: DesiredState
) -> None:
    chosen = {"action": action, "_selected_action": ["flux-server-1", "zimg-server-2"], "post": "yes"}
    operator.post(reverse("admin:gpus_server_changelist"), chosen)
    switched = Server.objects.filter(name__in=chosen["_selected_action"])
    assert {server.desired for server in switched} == {desired.value}
    assert {server.name: server.desired for server in fake_ports.leases.servers} == {
        "flux-server-1": desired,
        "zimg-server-2": desired,
    }


def test_a_deleted_server_is_removed_from_the_lease_layer(operator: Client, fake_ports: FakePorts) -> None:
    answer = operator.post(reverse("admin:gpus_server_delete", args=["flux-server-1"]), {"post": "yes"})
    assert answer.status_code == 302
    assert not Server.objects.filter(name="flux-server-1").exists()
    assert fake_ports.leases.forgotten == ["flux-server-1"]


def test_old_quarantines_are_deleted_with_their_server(operator: Client) -> None:
    QuarantinedSlot.objects.update(freed_at=NOW)
    [name] = QuarantinedSlot.objects.values_list("server", flat=True)
    operator.post(reverse("admin:gpus_server_delete", args=[name]), {"post": "yes"})
    assert not Server.objects.filter(name=name).exists()


def test_a_server_with_a_slot_in_quarantine_is_not_deleted(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = QuarantinedSlot.objects.values_list("server", flat=True)
    page = reverse("admin:gpus_server_delete", args=[name])
    many = {"action": "delete_selected", "_selected_action": [name, "flux-server-1"], "post": "yes"}
    assert "slot in quarantine" in operator.get(page).content.decode()
    operator.post(page, {"post": "yes"})
    operator.post(reverse("admin:gpus_server_changelist"), many)
    assert Server.objects.count() == 8
    # quarantined after the confirmation page
    monkeypatch.setattr(ServerPages, "get_deleted_objects", LiveAdmin.get_deleted_objects)
    for answer in (
        operator.post(page, {"post": "yes"}),
        operator.post(reverse("admin:gpus_server_changelist"), many | {"_selected_action": [name]}),
    ):
        *_, last = get_messages(answer.wsgi_request)
        assert "is in quarantine" in str(last)
    assert Server.objects.filter(name=name).exists()


def test_a_model_is_deleted_with_its_versions(operator: Client) -> None:
    Placement.objects.filter(model="ltx2").delete()
    assert ConfigVersion.objects.filter(model="ltx2").exists()
    operator.post(reverse("admin:gpus_modelconfig_delete", args=["ltx2"]), {"post": "yes"})
    assert not ModelConfig.objects.filter(name="ltx2").exists()


def test_headers_are_stored_encrypted_and_never_shown(operator: Client) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    secret = {"Authorization": "Bearer a-long-secret"}
    operator.post(page, server_form(request_headers=json.dumps(secret)))
    stored = Server.objects.get(name="flux-server-1").headers_encrypted
    assert read_headers(stored) == secret
    shown = operator.get(page).content.decode()
    assert "a-long-secret" not in shown
    assert stored not in shown
    operator.post(page, server_form())
    assert Server.objects.get(name="flux-server-1").headers_encrypted == stored
    operator.post(page, server_form(request_headers="{}"))
    assert Server.objects.get(name="flux-server-1").headers_encrypted == ""


def on_its_page(endpoint: str, **values: Any) -> dict[str, Any]:
    """A server's form with the row of its one model."""
    row = Placement.objects.get(server="flux-server-1")
    return server_form(**values) | {
        "placements-TOTAL_FORMS": 1,
        "placements-INITIAL_FORMS": 1,
        "placements-0-id": row.pk,
        "placements-0-server": row.server_id,
        "placements-0-model": row.model_id,
        "placements-0-endpoint": endpoint,
    }


def test_no_form_sends_secret_headers_to_another_origin(operator: Client) -> None:
    server = reverse("admin:gpus_server_change", args=["flux-server-1"])
    operator.post(server, server_form(request_headers='{"Authorization": "Bearer old"}'))
    row = Placement.objects.get(server="flux-server-1")
    before, away = row.endpoint, "http://10.9.9.9/generate"
    placement = reverse("admin:gpus_placement_change", args=[row.pk])
    refused = [
        operator.post(placement, {"endpoint": away, "request_headers": "{}"}),
        operator.post(server, on_its_page(away)),
        operator.post(
            reverse("admin:gpus_placement_add"),
            {"server": "flux-server-1", "model": "flux", "endpoint": away},
        ),
    ]
    for answer in refused:
        assert answer.status_code == 200
    for answer in refused[:2]:
        assert "the server has secret headers" in answer.content.decode().lower()
    row.refresh_from_db()
    assert row.endpoint == before
    assert operator.post(server, on_its_page(before.replace("generate", "other"))).status_code == 302
    again = on_its_page(away, request_headers='{"Authorization": "Bearer new"}')
    assert operator.post(server, again).status_code == 302
    row.refresh_from_db()
    assert row.endpoint == away
    stored = Server.objects.get(name="flux-server-1").headers_encrypted
    assert read_headers(stored) == {"Authorization": "Bearer new"}


def test_a_page_that_was_open_keeps_a_row_that_others_changed_meanwhile(operator: Client) -> None:
    """The row's old endpoint, which the page sends back, is not judged: it would move the secret headers."""
    row = Placement.objects.get(server="flux-server-1")
    shown = on_its_page(row.endpoint, host="a") | {
        "initial-placements-0-endpoint": row.endpoint,
        "initial-placements-0-model": row.model_id,
    }
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    html = operator.get(page).content.decode()
    assert not [name for name in shown if name.startswith("initial-") and f'name="{name}"' not in html]
    Placement.objects.filter(pk=row.pk).update(endpoint="http://10.9.9.9/generate")
    Server.objects.filter(name="flux-server-1").update(
        headers_encrypted=encrypt('{"Authorization": "Bearer new"}')
    )
    answer = operator.post(page, shown)
    assert answer.status_code == 302, errors_of(answer)
    row.refresh_from_db()
    assert row.endpoint == "http://10.9.9.9/generate"
    assert Server.objects.get(name="flux-server-1").host == "a"


def test_the_page_of_a_pinned_server_is_saved_with_its_local_endpoint(operator: Client) -> None:
    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    assert operator.post(page, on_its_page("local://flux", host="a")).status_code == 200
    Placement.objects.filter(server="flux-server-1").update(endpoint="local://flux")
    answer = operator.post(page, on_its_page("local://flux", host="a"))
    assert answer.status_code == 302, errors_of(answer)
    assert Server.objects.get(name="flux-server-1").host == "a"


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_a_row_is_locked_from_its_read_to_its_save(operator: Client) -> None:
    """SQLite locks its only writer; else a write in between would be taken back."""
    if connection.vendor != "postgresql":
        pytest.skip("rows have locks of their own on PostgreSQL only")
    held: list[str] = []

    def lock_elsewhere(model: type[Model]) -> None:
        try:
            with transaction.atomic():
                list(model._default_manager.select_for_update(no_key=True, nowait=True))
        except OperationalError:
            held.append(model.__name__)
        finally:
            connection.close()

    def before_save(sender: type[Model], **_: Any) -> None:
        for model in (Server, Placement):
            thread = threading.Thread(target=lock_elsewhere, args=[model])
            thread.start()
            thread.join()

    page = reverse("admin:gpus_server_change", args=["flux-server-1"])
    pre_save.connect(before_save, sender=Server)
    try:
        row = Placement.objects.get(server="flux-server-1")
        assert operator.post(page, on_its_page(row.endpoint, host="a")).status_code == 302
    finally:
        pre_save.disconnect(before_save, sender=Server)
    assert held == ["Server", "Placement"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"request_headers": "Bearer x"}, "Not JSON"),
        ({"request_headers": "[1]"}, "JSON object"),
        ({"request_headers": '{"X": 1}'}, "not a header"),
        ({"request_headers": '{"X Y": "1"}'}, "not a header"),
        ({"request_headers": '{"X": "1\\r\\nY: 2"}'}, "not a header"),
        ({"ca_pem": "no certificate"}, "PEM"),
        ({"slots": -1}, "greater than or equal to 0"),
        ({"slots": 1025}, "0 to 1024 slots"),
        ({"name": "no/slashes", "pool": "flux"}, "letters, digits"),
        (placement_form("flux", "ftp://10.0.0.3/"), "http:// or https://"),
        (placement_form("zimg", "http://10.0.0.3/"), "belongs to pool zimg"),
    ],
)
def test_an_invalid_server_is_refused(operator: Client, values: dict[str, Any], complaint: str) -> None:
    form = server_form(name="flux-server-3", pool="flux") | values
    assert complaint in errors_of(operator.post(reverse("admin:gpus_server_add"), form))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"model_type": "async"}, "poll_endpoint_template"),
        ({"poll_endpoint_template": "/status"}, "{id}"),
        ({"cancel_endpoint_template": "cancel"}, "http(s)://"),
        ({"payload_schema": '{"type": "banana"}'}, "JSON Schema"),
        ({"payload_schema": "{"}, "valid JSON"),
        ({"result_schema": '{"type": "banana"}'}, "JSON Schema"),
        ({"output_files": '["images[]"]'}, "a path to files has"),
        ({"output_files": '"images[*]"'}, "must be a list of paths"),
        ({"poll_interval": 0}, "More than 0"),
        ({"max_poll_time": -5}, "More than 0"),
        ({"max_run_seconds": 0}, "More than 0"),
    ],
)
def test_an_invalid_model_is_refused(operator: Client, values: dict[str, Any], complaint: str) -> None:
    page = reverse("admin:gpus_modelconfig_change", args=["zimg"])
    assert complaint in errors_of(operator.post(page, model_form(**values)))


def test_a_changed_model_is_mirrored(
    operator: Client, fake_ports: FakePorts, django_capture_on_commit_callbacks: Commits
) -> None:
    page = reverse("admin:gpus_modelconfig_change", args=["zimg"])
    values = {
        "model_type": "async",
        "poll_endpoint_template": "/status/{id}",
        "payload_schema": '{"type": "object"}',
    }
    with django_capture_on_commit_callbacks(execute=True):
        assert operator.post(page, model_form(**values)).status_code == 302
    saved = ModelConfig.objects.get(name="zimg")
    assert (saved.model_type, saved.id_field, saved.payload_schema) == ("async", None, {"type": "object"})
    assert fake_ports.leases.servers


def test_a_stored_schema_that_is_invalid_does_not_block_other_changes(
    operator: Client, fake_ports: FakePorts
) -> None:
    ModelConfig.objects.filter(name="zimg").update(payload_schema={"pattern": "(?=a)b"})
    page = reverse("admin:gpus_modelconfig_change", args=["zimg"])
    form = model_form(max_retries=7, payload_schema='{"pattern": "(?=a)b"}')
    assert operator.post(page, form).status_code == 302
    assert ModelConfig.objects.get(name="zimg").max_retries == 7
    form["payload_schema"] = '{"pattern": "(?=a)c"}'
    assert "linear-time" in errors_of(operator.post(page, form))


def test_a_models_type_must_be_an_installed_runner(operator: Client) -> None:
    page = reverse("admin:gpus_modelconfig_change", args=["zimg"])
    assert "triton" in errors_of(operator.post(page, model_form(model_type="triton")))
    assert 'value="ollama"' in operator.get(page).content.decode()


def test_a_model_whose_runner_is_not_installed_can_be_shown_and_changed(operator: Client) -> None:
    ModelConfig.objects.filter(name="zimg").update(model_type="gone")
    page = reverse("admin:gpus_modelconfig_change", args=["zimg"])
    assert "gone (not installed)" in operator.get(page).content.decode()
    assert operator.get(reverse("admin:gpus_modelconfig_changelist")).status_code == 200
    assert operator.post(page, model_form(model_type="gone", max_retries=7)).status_code == 302
    saved = ModelConfig.objects.get(name="zimg")
    assert (saved.model_type, saved.max_retries) == ("gone", 7)


def test_the_list_of_models_can_be_filtered_by_type(operator: Client) -> None:
    ModelConfig.objects.filter(name="zimg").update(model_type="openai")
    found = operator.get(reverse("admin:gpus_modelconfig_changelist"), {"model_type__exact": "openai"})
    assert [row.name for row in found.context["cl"].result_list] == ["zimg"]


def test_a_pools_algorithm_is_mirrored_and_its_fleet_stays(
    operator: Client, fake_ports: FakePorts, django_capture_on_commit_callbacks: Commits
) -> None:
    page = reverse("admin:gpus_pool_change", args=["zimg"])
    with django_capture_on_commit_callbacks(execute=True):
        operator.post(page, {"algorithm": "fifo", "affinity_patience_seconds": 5, "fleet": "elsewhere"})
    assert Pool.objects.get(name="zimg").fleet == "main"
    assert {pool.name: pool.algorithm for pool in fake_ports.leases.pools}["zimg"] == QueueAlgorithm.FIFO
    assert "0 seconds" in errors_of(
        operator.post(page, {"algorithm": "fifo", "affinity_patience_seconds": -1})
    )


def test_a_pool_in_use_is_not_deleted(operator: Client) -> None:
    operator.post(reverse("admin:gpus_pool_delete", args=["zimg"]), {"post": "yes"})
    assert Pool.objects.filter(name="zimg").exists()


def test_a_deleted_placement_is_mirrored(
    operator: Client, fake_ports: FakePorts, django_capture_on_commit_callbacks: Commits
) -> None:
    row = Placement.objects.get(server="flux-server-1")
    with django_capture_on_commit_callbacks(execute=True):
        operator.post(reverse("admin:gpus_placement_delete", args=[row.pk]), {"post": "yes"})
    assert {server.name: server.models for server in fake_ports.leases.servers}["flux-server-1"] == ()
