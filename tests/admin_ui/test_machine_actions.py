"""Actions on whole machines: they change all servers of the selected servers' machines, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from gpus.models import AuditEntry, Server
from tests.admin_ui.rows import fill
from tests.support.admin_ports import FakePorts
from tests.support.form_fields import fields_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]
LIST = "admin:gpus_server_changelist"
BOX = ["flux-server-1", "zimg-server-1"]


@pytest.fixture(autouse=True)
def some(db: None) -> None:
    fill(jobs=6)
    Server.objects.filter(name__in=BOX).update(machine="box")
    Server.objects.filter(name="flux-server-2").update(machine="other")


def selected(action: str, *names: str, **more: str) -> dict[str, Any]:
    return {"action": action, "_selected_action": list(names), **more}


def messages_of(answer: Any) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def switched(desired: str) -> list[str]:
    return list(Server.objects.filter(desired=desired).order_by("name").values_list("name", flat=True))


@pytest.mark.parametrize(
    ("action", "desired"), [("drain_machines", "draining"), ("switch_machines_off", "off")]
)
def test_one_selected_server_switches_its_whole_machine(
    operator: Client, fake_ports: FakePorts, action: str, desired: str
) -> None:
    before = set(switched(desired))
    answer = operator.post(reverse(LIST), selected(action, BOX[1], post="yes"))
    assert set(switched(desired)) - before == set(BOX)
    assert {server.name for server in fake_ports.leases.servers} == set(BOX)
    assert messages_of(answer) == [f"box: {BOX[0]}, {BOX[1]} set to {desired}."]
    [entry] = AuditEntry.objects.filter(action="switch_machine")
    assert (entry.actor[:5], entry.target) == ("user:", "machine:box")


def test_a_machine_is_switched_on_again(operator: Client) -> None:
    Server.objects.update(desired="off")
    operator.post(reverse(LIST), selected("switch_machines_on", *BOX))
    assert switched("on") == BOX
    assert AuditEntry.objects.filter(action="switch_machine").count() == 1, "a machine is switched once"


def test_switching_off_lists_all_servers_on_a_confirmation_page(operator: Client) -> None:
    before = switched("off")
    page = operator.post(reverse(LIST), selected("switch_machines_off", BOX[0])).content.decode()
    assert switched("off") == before
    assert all(f"<li>{name}</li>" in page for name in BOX)
    assert "<li>flux-server-2</li>" not in page
    operator.post(reverse(LIST), fields_of(page))
    assert set(switched("off")) - set(before) == set(BOX)


@pytest.mark.parametrize("action", ["drain_machines", "switch_machines_off"])
def test_servers_without_a_machine_are_not_switched(operator: Client, action: str) -> None:
    answer = operator.post(reverse(LIST), selected(action, "ltx2-server-1", post="yes"))
    assert messages_of(answer) == ["None of the selected servers is part of a machine."]
    assert not AuditEntry.objects.filter(action="switch_machine").exists()


def test_a_viewer_cannot_switch_a_machine(viewer: Client) -> None:
    viewer.post(reverse(LIST), selected("switch_machines_off", BOX[0], post="yes"))
    assert not AuditEntry.objects.filter(action="switch_machine").exists()


def test_a_servers_machine_can_be_edited(operator: Client) -> None:
    page = operator.get(reverse("admin:gpus_server_change", args=["ltx2-server-1"])).content.decode()
    assert 'name="machine"' in page
