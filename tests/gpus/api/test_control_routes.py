from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from gpus.models import AuditEntry, Pause, Server
from tests.support.api_harness import Account, ApiHarness, api, operator
from tests.support.factories import make_model, make_server
from tests.support.problems import problem

__all__ = ["api", "operator"]

ADMIN = "/api/v1/admin"


@pytest.fixture
def flux(operator: Account) -> Server:
    """With two models, in a pool of their own."""
    server = make_server("s1", model=make_model("flux", pool="big"), slots=2)
    server.placements.create(model=make_model("ltx2", pool="big"), endpoint="http://10.0.0.1/video")
    return server


# -- servers ---------------------------------------------------------------------------------------------


def test_a_server_shows_desired_and_actual_state(operator: Account, api: ApiHarness, flux: Server) -> None:
    api.leases.views["s1"] = ["leased", "off"]
    body = operator.client.get(f"{ADMIN}/servers/s1").json()
    assert (body["server"], body["pool"], body["desired"], body["live"]) == ("s1", "big", "on", True)
    assert body["observed"] == {
        "state": "draining",
        "slots": {"leased": 1, "off": 1},
        "resting": 0,
        "running": 1,
        "circuit": "closed",
    }
    assert [one["model"] for one in body["models"]] == ["flux", "ltx2"]
    assert "headers" not in str(body)


def test_a_server_is_switched_and_resized(operator: Account, api: ApiHarness, flux: Server) -> None:
    answer = operator.client.patch(f"{ADMIN}/servers/s1", {"desired": "draining", "slots": 0}, format="json")
    assert answer.status_code == 200, answer.content
    assert (answer.json()["desired"], answer.json()["slots"]) == ("draining", 0)
    assert (api.leases.servers["s1"].desired, api.leases.servers["s1"].slots) == ("draining", 0)
    api.wakes.clear()
    operator.client.patch(f"{ADMIN}/servers/s1", {"desired": "on", "slots": 2}, format="json")
    assert [wake.count for wake in api.wakes] == [2]


def test_without_redis_a_server_is_shown_and_switched_all_the_same(
    operator: Account, api: ApiHarness, flux: Server
) -> None:
    api.leases.away = True
    body = operator.client.patch(f"{ADMIN}/servers/s1", {"desired": "off"}, format="json").json()
    assert (body["desired"], body["observed"]["state"], body["live"]) == ("off", "unknown", False)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, ""),
        ({"desired": "asleep"}, "/desired"),
        ({"slots": -1}, "/slots"),
        ({"slots": 1025}, "/slots"),
        ({"slots": True}, "/slots"),
        ({"name": "x"}, "/name"),
        ([], ""),
    ],
)
def test_a_switch_that_makes_no_sense_is_refused(
    operator: Account, flux: Server, body: Any, pointer: str
) -> None:
    answer = operator.client.patch(f"{ADMIN}/servers/s1", body, format="json")
    problem(answer, 422, "validation_failed", pointer)


def test_a_server_is_forgotten(operator: Account, api: ApiHarness, flux: Server) -> None:
    operator.client.patch(f"{ADMIN}/servers/s1", {"slots": 1}, format="json")
    assert operator.client.delete(f"{ADMIN}/servers/s1").status_code == 204
    assert (Server.objects.count(), api.leases.servers) == (0, {})
    assert AuditEntry.objects.filter(action="remove_server", target="server:s1").exists()


def test_a_server_with_a_slot_in_quarantine_is_not_forgotten(
    operator: Account, api: ApiHarness, flux: Server
) -> None:
    now = timezone.now()
    flux.quarantined.create(slot=0, reason="timeout", since=now, until=now)
    problem(operator.client.delete(f"{ADMIN}/servers/s1"), 409, "server_in_quarantine", "/server")
    assert Server.objects.exists()


@pytest.mark.parametrize("name", ["nope", "a%20b", "%00", "x" * 65])
def test_a_server_that_is_not_there(operator: Account, name: str) -> None:
    url = f"{ADMIN}/servers/{name}"
    problem(operator.client.get(url), 404, "unknown_server", "/server")
    problem(operator.client.patch(url, {"slots": 1}, format="json"), 404, "unknown_server", "/server")
    problem(operator.client.delete(url), 404, "unknown_server", "/server")


def test_servers_are_listed_by_name_page_by_page(operator: Account, flux: Server) -> None:
    make_server("s-2.x_y", model=make_model("zimg"), desired="off")
    first = operator.client.get(f"{ADMIN}/servers?limit=1").json()
    assert [one["server"] for one in first["results"]] == ["s-2.x_y"]
    second = operator.client.get(first["next"]).json()
    assert [one["server"] for one in second["results"]] == ["s1"]
    back = operator.client.get(second["previous"]).json()
    assert [one["server"] for one in back["results"]] == ["s-2.x_y"]
    for query, found in (("pool=big", ["s1"]), ("desired=off", ["s-2.x_y"]), ("pool=big&desired=off", [])):
        listed = operator.client.get(f"{ADMIN}/servers?{query}").json()["results"]
        assert [one["server"] for one in listed] == found
    problem(operator.client.get(f"{ADMIN}/servers?desired=x"), 400, "invalid_parameter", "/desired")
    problem(operator.client.get(f"{ADMIN}/servers?colour=x"), 400, "unknown_parameter", "/colour")
    problem(operator.client.get(f"{ADMIN}/servers?cursor=cD0lMDA="), 400, "bad_cursor", "/cursor")


# -- pauses ----------------------------------------------------------------------------------------------


def test_a_model_is_paused_and_resumed(operator: Account, api: ApiHarness, flux: Server) -> None:
    url = f"{ADMIN}/models/flux"
    body = operator.client.post(f"{url}/pause", {"reason": "bad weights"}, format="json").json()
    assert body == {"kind": "model", "name": "flux", "paused": True, "changed": True, "live": True}
    assert api.leases.servers["s1"].models == ("ltx2",)
    models = operator.client.get(f"{ADMIN}/servers/s1").json()["models"]
    assert [one["paused"] for one in models] == [True, False]
    assert not operator.client.post(f"{url}/pause").json()["changed"]
    [pause] = operator.client.get(f"{ADMIN}/pauses").json()["results"]
    assert (pause["kind"], pause["name"], pause["reason"]) == ("model", "flux", "bad weights")
    assert pause["by"].startswith("key:")
    api.wakes.clear()
    body = operator.client.post(f"{url}/resume").json()
    assert (body["paused"], body["changed"]) == (False, True)
    assert api.wakes
    assert operator.client.get(f"{ADMIN}/pauses").json() == {"results": []}


def test_everything_is_paused_and_resumed(operator: Account, api: ApiHarness, flux: Server) -> None:
    body = operator.client.post(f"{ADMIN}/pause").json()
    assert body == {"kind": "system", "name": "", "paused": True, "changed": True, "live": True}
    assert api.leases.servers["s1"].desired == "draining"
    api.leases.away = True
    body = operator.client.post(f"{ADMIN}/resume").json()
    assert (body["changed"], body["live"]) == (True, False)
    assert not Pause.objects.exists()


def test_a_pause_that_makes_no_sense_is_refused(operator: Account, flux: Server) -> None:
    url = f"{ADMIN}/models/flux/pause"
    problem(
        operator.client.post(url, {"reason": "x" * 501}, format="json"), 422, "validation_failed", "/reason"
    )
    problem(operator.client.post(url, {"why": "x"}, format="json"), 422, "validation_failed", "/why")
    problem(operator.client.post(f"{ADMIN}/models/nope/pause"), 404, "unknown_model", "/model")
    problem(operator.client.post(f"{ADMIN}/models/%00/resume"), 404, "unknown_model", "/model")
    assert not Pause.objects.exists()


# -- versions --------------------------------------------------------------------------------------------


def test_a_configuration_has_versions_and_can_be_reverted(operator: Account) -> None:
    url = f"{ADMIN}/model-configs/flux"
    operator.client.put(url, {"max_retries": 1}, format="json")
    shown = operator.client.get(url).json()
    operator.client.patch(url, {"max_retries": 2, "queue_algorithm": "fifo"}, format="json")
    listed = operator.client.get(f"{url}/versions").json()["results"]
    assert [(one["number"], one["fields"]["max_retries"]) for one in listed] == [(2, 2), (1, 1)]
    first = operator.client.get(f"{url}/versions?limit=1").json()
    assert [one["number"] for one in operator.client.get(first["next"]).json()["results"]] == [1]
    reverted = operator.client.post(f"{url}/revert", {"number": 1}, format="json")
    assert (reverted.status_code, reverted.json()) == (200, shown)
    assert operator.client.get(url).json() == shown
    assert len(operator.client.get(f"{url}/versions").json()["results"]) == 3


def test_a_version_that_is_not_there(operator: Account) -> None:
    make_model("flux")
    url = f"{ADMIN}/model-configs/flux"
    problem(operator.client.post(f"{url}/revert", {"number": 7}, format="json"), 404, "unknown_version")
    problem(operator.client.post(f"{url}/revert", {"number": 0}, format="json"), 422, "validation_failed")
    problem(operator.client.post(f"{url}/revert", {}, format="json"), 422, "validation_failed", "/number")
    nope = f"{ADMIN}/model-configs/nope"
    problem(operator.client.get(f"{nope}/versions"), 404, "unknown_model", "/model")
    problem(operator.client.post(f"{nope}/revert", {"number": 1}, format="json"), 404, "unknown_model")


# -- audit -----------------------------------------------------------------------------------------------


def test_audit_entries_are_listed_and_filtered(operator: Account, flux: Server) -> None:
    operator.client.patch(f"{ADMIN}/servers/s1", {"desired": "off", "slots": 1}, format="json")
    operator.client.post(f"{ADMIN}/models/flux/pause")
    listed = operator.client.get(f"{ADMIN}/audit").json()["results"]
    assert [one["action"] for one in listed] == ["pause_model", "switch_server", "set_slots"]
    assert listed[1]["detail"] == {"before": "on", "after": "off"}
    for query, found in (
        ("target=server:s1", ["switch_server", "set_slots"]),
        ("action=pause_model", ["pause_model"]),
        (f"actor={listed[0]['actor']}&action=set_slots", ["set_slots"]),
        ("actor=user:nobody", []),
    ):
        answer = operator.client.get(f"{ADMIN}/audit?{query}").json()
        assert [one["action"] for one in answer["results"]] == found
    first = operator.client.get(f"{ADMIN}/audit?limit=1").json()
    assert [one["action"] for one in operator.client.get(first["next"]).json()["results"]] == [
        "switch_server"
    ]
    problem(operator.client.get(f"{ADMIN}/audit?who=x"), 400, "unknown_parameter", "/who")
    problem(operator.client.get(f"{ADMIN}/audit?cursor=cD1hYmM="), 400, "bad_cursor", "/cursor")
