"""The dashboard's buttons: permissions, changes, audit entries and messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from gpus.leasing.values import Wakes
from gpus.models import AuditEntry, ModelConfig, Pause, Placement, Pool, QuarantinedSlot, Server
from jobs.models import Tenant
from tests.support.admin_ports import FakePorts

pytestmark = pytest.mark.django_db


@pytest.fixture
def box(db: None) -> Server:
    pool = Pool.objects.create(name="flux")
    config = ModelConfig.objects.create(name="flux", pool=pool)
    server = Server.objects.create(name="box", pool=pool, slots=2)
    Placement.objects.create(server=server, model=config, endpoint="http://127.0.0.1:9/flux")
    return server


def press(client: Client, route: str, *names: str, **values: str) -> HttpResponse:
    url = reverse(f"dashboard:{route}", args=names)
    return client.post(url, values, headers={"HX-Request": "true"})  # type: ignore[return-value]


def toast(answer: HttpResponse) -> dict[str, Any]:
    assert answer.status_code == 204
    events = json.loads(answer["HX-Trigger"])
    assert "changed" in events
    return events["toast"]  # type: ignore[no-any-return]


def entries() -> list[tuple[str, str, str]]:
    return list(AuditEntry.objects.order_by("id").values_list("actor", "action", "target"))


@pytest.mark.parametrize("desired", ["draining", "off"])
def test_a_server_is_switched_by_the_service(
    operator: Client, fake_ports: FakePorts, box: Server, desired: str
) -> None:
    assert toast(press(operator, "switch_server", "box", desired=desired)) == {
        "text": f"box: set to {desired}.",
        "bad": False,
    }
    box.refresh_from_db()
    assert box.desired == desired
    assert fake_ports.leases.servers[-1].desired == desired
    assert entries() == [("user:operators", "switch_server", "server:box")]
    assert fake_ports.wakes


def test_a_double_click_sets_the_slots_once(operator: Client, fake_ports: FakePorts, box: Server) -> None:
    for _ in range(2):
        assert toast(press(operator, "set_slots", "box", slots="3"))["text"] == "box: 3 slots."
    box.refresh_from_db()
    assert (box.slots, len(entries())) == (3, 1)


def quarantined(box: Server) -> QuarantinedSlot:
    now = timezone.now()
    return QuarantinedSlot.objects.create(
        server=box, slot=1, attempt_id="a" * 26, reason="server_lost", since=now, until=now
    )


def test_a_slot_in_quarantine_can_be_freed(operator: Client, fake_ports: FakePorts, box: Server) -> None:
    row = quarantined(box)
    assert toast(press(operator, "free_slot", "box", "1")) == {"text": "box/1 is free.", "bad": False}
    row.refresh_from_db()
    assert (row.freed_at is not None, row.evidence) == (True, "freed by user:operators")
    assert entries() == [("user:operators", "free_slot", "slot:box/1")]
    assert fake_ports.leases.freed == ["box/1"]
    again = toast(press(operator, "free_slot", "box", "1"))
    assert again == {"text": "Slot box/1 is not in quarantine.", "bad": True}


def test_a_viewer_cannot_free_a_slot(viewer: Client, box: Server) -> None:
    row = quarantined(box)
    assert press(viewer, "free_slot", "box", "1").status_code == 403
    row.refresh_from_db()
    assert row.freed_at is None


def test_slots_are_freed_from_the_list_after_a_confirmation(
    operator: Client, viewer: Client, fake_ports: FakePorts, box: Server
) -> None:
    row = quarantined(box)
    page = reverse("admin:gpus_quarantinedslot_changelist")
    selected = {"action": "free", "_selected_action": str(row.pk)}
    viewer.post(page, {**selected, "post": "yes"})
    confirmation = operator.post(page, selected)
    assert "Free these slots?" in confirmation.content.decode()
    row.refresh_from_db()
    assert row.freed_at is None
    operator.post(page, {**selected, "post": "yes"})
    row.refresh_from_db()
    assert row.freed_at is not None
    assert fake_ports.leases.freed == ["box/1"]


@pytest.mark.usefixtures("fake_ports", "box")
@pytest.mark.parametrize(
    ("route", "values", "text"),
    [
        ("set_slots", {"slots": "-1"}, "The number of slots is a whole number, not '-1'."),
        ("set_slots", {"slots": "٣"}, "The number of slots is a whole number, not '٣'."),
        ("set_slots", {}, "The number of slots is a whole number, not ''."),
        ("set_slots", {"slots": "9999"}, "A server has 0 to 1024 slots."),
        ("switch_server", {"desired": "burn"}, "A server is on, draining or off, not 'burn'."),
    ],
)
def test_invalid_values_are_refused(operator: Client, route: str, values: dict[str, str], text: str) -> None:
    assert toast(press(operator, route, "box", **values)) == {"text": text, "bad": True}
    assert entries() == []


@pytest.mark.usefixtures("fake_ports")
def test_switching_an_unknown_server_is_an_error(operator: Client) -> None:
    shown = toast(press(operator, "switch_server", "gone", desired="off"))
    assert shown == {"text": "No server is named gone.", "bad": True}


@pytest.mark.usefixtures("box")
def test_without_redis_a_switch_is_saved_with_a_warning(operator: Client, fake_ports: FakePorts) -> None:
    fake_ports.leases.away = True
    shown = toast(press(operator, "switch_server", "box", desired="off"))
    assert shown["bad"]
    assert "once Redis is back" in shown["text"]
    assert Server.objects.get(name="box").desired == "off"


@pytest.mark.usefixtures("box")
def test_resuming_a_model_sends_wakes(
    operator: Client, fake_ports: FakePorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    press(operator, "pause", kind="model", name="flux")
    fake_ports.wakes.clear()
    monkeypatch.setattr(fake_ports.leases, "fill", lambda: (Wakes("flux", None, 1),))
    press(operator, "resume", kind="model", name="flux")
    assert [wake.pool for wake in fake_ports.wakes] == ["flux"]


@pytest.mark.usefixtures("fake_ports", "box")
def test_models_tenants_and_the_system_are_paused_and_resumed(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    targets = [
        ({"kind": "model", "name": "flux"}, "flux", "flux", "model:flux"),
        ({"kind": "tenant", "name": str(tenant.pk)}, str(tenant.pk), "acme", "tenant:acme"),
        ({"kind": "system"}, "", "The whole system", "system:all"),
    ]
    for values, name, label, target in targets:
        assert toast(press(operator, "pause", **values, reason=" fire ")) == {
            "text": f"{label}: paused.",
            "bad": False,
        }
        row = Pause.objects.get(kind=values["kind"])
        assert (row.name, row.reason, row.actor) == (name, "fire", "user:operators")
        assert toast(press(operator, "pause", **values))["text"] == f"{label}: already paused."
        assert toast(press(operator, "resume", **values))["text"] == f"{label}: resumed."
        assert toast(press(operator, "resume", **values))["text"] == f"{label}: was not paused."
        assert [entry[2] for entry in entries()[-2:]] == [target, target]
    assert not Pause.objects.exists()


@pytest.mark.usefixtures("fake_ports")
@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"kind": "moon"}, 404),
        ({}, 404),
        ({"kind": "tenant", "name": "x"}, 404),
        ({"kind": "tenant", "name": "77"}, 404),
        ({"kind": "model", "name": "unknown"}, 204),
    ],
)
def test_pausing_an_unknown_target_is_an_error(operator: Client, values: dict[str, str], status: int) -> None:
    answer = press(operator, "pause", **values)
    assert answer.status_code == status
    if status == 204:
        assert toast(answer)["bad"]
    assert not Pause.objects.exists()


@pytest.mark.usefixtures("fake_ports")
def test_a_viewer_gets_403_and_nothing_changes(viewer: Client, box: Server) -> None:
    tenant = Tenant.objects.create(name="acme")
    pauses = [
        {"kind": "system"},
        {"kind": "model", "name": "flux"},
        {"kind": "tenant", "name": str(tenant.pk)},
    ]
    assert press(viewer, "switch_server", "box", desired="off").status_code == 403
    assert press(viewer, "set_slots", "box", slots="0").status_code == 403
    for values in pauses:
        assert press(viewer, "pause", **values).status_code == 403
        assert press(viewer, "resume", **values).status_code == 403
    box.refresh_from_db()
    assert (box.desired, box.slots) == ("on", 2)
    assert (Pause.objects.count(), entries()) == (0, [])


@pytest.mark.usefixtures("fake_ports", "box")
def test_get_and_requests_from_another_site_change_nothing(boss: Client) -> None:
    for url in ("/admin/fleet/box/switch/", "/admin/fleet/box/slots/", "/admin/pause/", "/admin/resume/"):
        assert boss.get(url).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    assert strict.post("/admin/fleet/box/switch/", {"desired": "off"}).status_code == 403
    assert Server.objects.get(name="box").desired == "on"
