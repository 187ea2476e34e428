"""Buttons: who may, what is written, and what is said about it."""

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
from tests.admin_ui.conftest import World

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite_only]


@pytest.fixture
def box(db: None) -> Server:
    pool = Pool.objects.create(name="flux")
    config = ModelConfig.objects.create(name="flux", pool=pool)
    server = Server.objects.create(name="box", pool=pool, slots=2)
    Placement.objects.create(server=server, model=config, endpoint="http://127.0.0.1:9/flux")
    return server


def press(client: Client, route: str, *names: str, **values: str) -> HttpResponse:
    where = reverse(f"dashboard:{route}", args=names)
    return client.post(where, values, headers={"HX-Request": "true"})  # type: ignore[return-value]


def said(answer: HttpResponse) -> dict[str, Any]:
    assert answer.status_code == 204
    told = json.loads(answer["HX-Trigger"])
    assert "changed" in told
    return told["said"]  # type: ignore[no-any-return]


def entries() -> list[tuple[str, str, str]]:
    return list(AuditEntry.objects.order_by("id").values_list("actor", "action", "target"))


@pytest.mark.parametrize("desired", ["draining", "off"])
def test_a_server_is_switched_by_the_service(
    operator: Client, world: World, box: Server, desired: str
) -> None:
    assert said(press(operator, "switch_server", "box", desired=desired)) == {
        "text": f"box: {desired}.",
        "bad": False,
    }
    box.refresh_from_db()
    assert box.desired == desired
    assert world.leases.servers[-1].desired == desired
    assert entries() == [("user:operators", "switch_server", "server:box")]
    assert world.wakes


def test_slots_are_set_and_not_counted_up(operator: Client, world: World, box: Server) -> None:
    for _ in range(2):  # a click that is sent twice
        assert said(press(operator, "set_slots", "box", slots="3"))["text"] == "box: 3 slots."
    box.refresh_from_db()
    assert (box.slots, len(entries())) == (3, 1)


def suspect(box: Server) -> QuarantinedSlot:
    now = timezone.now()
    return QuarantinedSlot.objects.create(
        server=box, slot=1, attempt_id="a" * 26, reason="server_lost", since=now, until=now
    )


def test_a_slot_in_quarantine_is_said_to_be_free(operator: Client, world: World, box: Server) -> None:
    row = suspect(box)
    assert said(press(operator, "free_slot", "box", "1")) == {"text": "box/1 is free.", "bad": False}
    row.refresh_from_db()
    assert (row.freed_at is not None, row.evidence) == (True, "freed by user:operators")
    assert entries() == [("user:operators", "free_slot", "slot:box/1")]
    assert world.leases.freed == ["box/1"]
    again = said(press(operator, "free_slot", "box", "1"))
    assert again == {"text": "Slot box/1 is not in quarantine.", "bad": True}


def test_who_may_only_look_frees_no_slot(viewer: Client, box: Server) -> None:
    row = suspect(box)
    assert press(viewer, "free_slot", "box", "1").status_code == 403
    row.refresh_from_db()
    assert row.freed_at is None


def test_slots_are_freed_from_the_list_after_a_question(
    operator: Client, viewer: Client, world: World, box: Server
) -> None:
    row = suspect(box)
    page = reverse("admin:gpus_quarantinedslot_changelist")
    ticked = {"action": "free", "_selected_action": str(row.pk)}
    viewer.post(page, {**ticked, "post": "yes"})
    asked = operator.post(page, ticked)
    assert "Are these slots free?" in asked.content.decode()
    row.refresh_from_db()
    assert row.freed_at is None
    operator.post(page, {**ticked, "post": "yes"})
    row.refresh_from_db()
    assert row.freed_at is not None
    assert world.leases.freed == ["box/1"]


@pytest.mark.usefixtures("world", "box")
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
def test_what_makes_no_sense_is_refused(
    operator: Client, route: str, values: dict[str, str], text: str
) -> None:
    assert said(press(operator, route, "box", **values)) == {"text": text, "bad": True}
    assert entries() == []


@pytest.mark.usefixtures("world")
def test_a_server_that_is_gone_is_said_to_be(operator: Client) -> None:
    told = said(press(operator, "switch_server", "gone", desired="off"))
    assert told == {"text": "There is no server gone.", "bad": True}


@pytest.mark.usefixtures("box")
def test_without_redis_it_is_kept_and_said(operator: Client, world: World) -> None:
    world.leases.away = True
    told = said(press(operator, "switch_server", "box", desired="off"))
    assert told["bad"]
    assert "once Redis is back" in told["text"]
    assert Server.objects.get(name="box").desired == "off"


@pytest.mark.usefixtures("box")
def test_who_goes_on_is_woken(operator: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    press(operator, "pause", kind="model", name="flux")
    world.wakes.clear()
    monkeypatch.setattr(world.leases, "fill", lambda: (Wakes("flux", None, 1),))
    press(operator, "resume", kind="model", name="flux")
    assert [wake.pool for wake in world.wakes] == ["flux"]


@pytest.mark.usefixtures("world", "box")
def test_models_tenants_and_the_system_are_paused_and_go_on(operator: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    whom = [
        ({"kind": "model", "name": "flux"}, "flux", "flux", "model:flux"),
        ({"kind": "tenant", "name": str(tenant.pk)}, str(tenant.pk), "acme", "tenant:acme"),
        ({"kind": "system"}, "", "The whole system", "system:all"),
    ]
    for values, name, label, target in whom:
        assert said(press(operator, "pause", **values, reason=" fire ")) == {
            "text": f"{label}: paused.",
            "bad": False,
        }
        row = Pause.objects.get(kind=values["kind"])
        assert (row.name, row.reason, row.actor) == (name, "fire", "user:operators")
        assert said(press(operator, "pause", **values))["text"] == f"{label}: was paused already."
        assert said(press(operator, "resume", **values))["text"] == f"{label}: goes on."
        assert said(press(operator, "resume", **values))["text"] == f"{label}: was not paused."
        assert [entry[2] for entry in entries()[-2:]] == [target, target]
    assert not Pause.objects.exists()


@pytest.mark.usefixtures("world")
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
def test_nobody_is_paused_who_is_not_there(operator: Client, values: dict[str, str], status: int) -> None:
    answer = press(operator, "pause", **values)
    assert answer.status_code == status
    if status == 204:
        assert said(answer)["bad"]
    assert not Pause.objects.exists()


@pytest.mark.usefixtures("world")
def test_who_may_only_look_gets_403_and_nothing_changes(viewer: Client, box: Server) -> None:
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


@pytest.mark.usefixtures("world", "box")
def test_nothing_happens_by_get_or_from_another_site(boss: Client) -> None:
    for where in ("/admin/fleet/box/switch/", "/admin/fleet/box/slots/", "/admin/pause/", "/admin/resume/"):
        assert boss.get(where).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    assert strict.post("/admin/fleet/box/switch/", {"desired": "off"}).status_code == 403
    assert Server.objects.get(name="box").desired == "on"
