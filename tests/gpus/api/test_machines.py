"""A machine over HTTP: shown and switched as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.models import AuditEntry, Server
from tests.support.api_harness import Account, ApiHarness, api, operator
from tests.support.factories import make_model, make_server
from tests.support.problems import problem

__all__ = ["api", "operator"]

BOX = "/api/v1/admin/machines/box"


@pytest.fixture(autouse=True)
def box(operator: Account) -> None:
    flux = make_model("flux")
    make_server("box-gpu0", model=flux, machine="box", slots=2)
    make_server("box-gpu1", model=flux, machine="box", desired="off")
    make_server("other-gpu0", model=flux, machine="other")


def test_one_request_switches_all_servers_and_returns_each(operator: Account, api: ApiHarness) -> None:
    api.leases.views["box-gpu0"] = ["leased", "free"]
    answer = operator.client.patch(BOX, {"desired": "off"}, format="json")
    assert answer.status_code == 200, answer.content
    body = answer.json()
    assert (body["machine"], body["changed"], body["live"]) == ("box", ["box-gpu0"], True)
    assert [(one["server"], one["desired"]) for one in body["servers"]] == [
        ("box-gpu0", "off"),
        ("box-gpu1", "off"),
    ]
    assert [one["observed"]["running"] for one in body["servers"]] == [1, 0]
    assert Server.objects.get(name="other-gpu0").desired == "on"
    assert AuditEntry.objects.filter(target="machine:box", actor__startswith="key:").exists()
    api.wakes.clear()
    body = operator.client.patch(BOX, {"desired": "on"}, format="json").json()
    assert body["changed"] == ["box-gpu0", "box-gpu1"]
    assert sum(wake.count for wake in api.wakes) == 3


def test_a_machine_is_shown_without_a_change(operator: Account) -> None:
    body = operator.client.get(BOX).json()
    assert [(one["server"], one["desired"], one["machine"]) for one in body["servers"]] == [
        ("box-gpu0", "on", "box"),
        ("box-gpu1", "off", "box"),
    ]
    assert body["changed"] == []


def test_a_machine_is_switched_without_redis_which_is_called_once(
    operator: Account, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.leases.away = True
    asked: list[Any] = []
    refuse = api.leases.slots_of
    monkeypatch.setattr(api.leases, "slots_of", lambda names: asked.append(names) or refuse(names))
    body = operator.client.patch(BOX, {"desired": "off"}, format="json").json()
    assert (body["live"], {one["observed"]["state"] for one in body["servers"]}) == (False, {"unknown"})
    assert set(Server.objects.filter(machine="box").values_list("desired", flat=True)) == {"off"}
    assert asked == [["box-gpu0", "box-gpu1"]], "each question may take its whole time-out"


@pytest.mark.parametrize("name", ["nope", "a%20b", "%00", "x" * 65])
def test_a_machine_that_is_not_there(operator: Account, name: str) -> None:
    url = f"/api/v1/admin/machines/{name}"
    problem(operator.client.get(url), 404, "unknown_machine", "/machine")
    problem(operator.client.patch(url, {"desired": "off"}, format="json"), 404, "unknown_machine", "/machine")
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/desired"),
        ({"desired": "hard"}, "/desired"),
        ({"desired": "off", "slots": 1}, "/slots"),
        ([], ""),
    ],
)
def test_a_switch_that_makes_no_sense_is_refused(operator: Account, body: Any, pointer: str) -> None:
    problem(operator.client.patch(BOX, body, format="json"), 422, "validation_failed", pointer)
    assert Server.objects.get(name="box-gpu0").desired == "on"


def test_registering_a_server_sets_its_machine(operator: Account) -> None:
    body = {
        "model": "zimg",
        "server": "box-http",
        "endpoint": "http://10.0.0.1/",
        "slots": 1,
        "machine": "box",
    }
    answer = operator.client.post("/api/v1/admin/register", body, format="json")
    assert (answer.status_code, answer.json()["machine"]) == (201, "box")
    machine = operator.client.patch(BOX, {"desired": "draining"}, format="json").json()
    assert machine["changed"] == ["box-gpu0", "box-gpu1", "box-http"]
    answer = operator.client.post("/api/v1/admin/register", body | {"machine": "a b"}, format="json")
    problem(answer, 422, "validation_failed", "/machine")
