"""Add a model server: an address in, proposals out, and a registration as the API's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from foundation.secrets import encrypt
from gpus.models import AuditEntry, ModelConfig, Placement, Server
from gpus.registry.queries import read_headers
from tests.support.admin_ports import FakePorts
from tests.support.factories import make_model, make_server
from tests.support.servers.cog_server import CogServer
from tests.support.servers.llm_server import Behaviour, LlmServer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]
SECRET = "Bearer a-long-secret"


@pytest.fixture
def cog() -> Iterator[CogServer]:
    with CogServer() as server:
        yield server


@pytest.fixture
def llm() -> Iterator[LlmServer]:
    with LlmServer(Behaviour(models=("small", "large"))) as server:
        yield server


def address() -> str:
    return reverse("admin:gpus_server_register")


def looked(client: Client, url: str, **more: str) -> Any:
    answer = client.post(address(), {"url": url, **more})
    assert answer.status_code == 200
    return answer


def fields(answer: Any) -> dict[str, str]:
    """The confirmation form as a browser sends it back, untouched."""
    page = answer.content.decode()
    form = answer.context["form"]
    [token] = re.findall(r'name="inspection" value="([^"]+)"', page)
    values = {name: form[name].value() for name in form.fields}
    return {"inspection": token, **{name: value for name, value in values.items() if value}}


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def test_a_look_changes_nothing(operator: Client, cog: CogServer) -> None:
    page = looked(operator, cog.url).content.decode()
    assert cog.url in page
    assert not Server.objects.exists()
    assert not ModelConfig.objects.exists()
    assert not AuditEntry.objects.exists()


def test_a_confirmed_proposal_is_registered_as_by_the_api(
    operator: Client, fake_ports: FakePorts, cog: CogServer
) -> None:
    form = fields(looked(operator, cog.url))
    answer = operator.post(
        address(), {**form, "server": "box-1", "slots": 3, "pool": "pictures", "model_0": "zimg"}
    )
    assert answer["Location"] == reverse("admin:gpus_server_change", args=["box-1"])
    server = Server.objects.get(name="box-1")
    assert (server.slots, server.pool_id) == (3, "pictures")
    config = ModelConfig.objects.get(name="zimg")
    assert (config.model_type, config.pool_id) == ("cog", "pictures")
    assert Placement.objects.get(server=server).endpoint.startswith(cog.url)
    assert [spec.name for spec in fake_ports.leases.servers] == ["box-1"]
    assert fake_ports.wakes
    assert server.healthy is True  # it was probed
    entry = AuditEntry.objects.get(action="register_server")
    assert (entry.actor, entry.target) == ("user:operators", "server:box-1")
    assert "zimg is registered on box-1." in said(answer)


def test_the_effect_of_a_server_that_went_away_is_a_warning(operator: Client) -> None:
    with CogServer() as cog:
        form = fields(looked(operator, cog.url))
    answer = operator.post(address(), form)
    assert answer.status_code == 302
    assert "until this is fixed" in said(answer)


def test_only_ticked_models_are_registered_and_share_one_pool(operator: Client, llm: LlmServer) -> None:
    answer = looked(operator, llm.url)
    names = [body["model"] for body in answer.context["found"].bodies]
    assert len(names) > 1
    form = fields(answer) | {"server": "llm-1"}
    assert "Tick at least one model." in operator.post(address(), form).content.decode()
    assert not Server.objects.exists()
    assert operator.post(address(), {**form, "use_0": "on", "use_1": "on"}).status_code == 302
    pools = dict(ModelConfig.objects.values_list("name", "pool"))
    assert pools == {names[0]: names[0], names[1]: names[0]}
    assert operator.post(address(), {**form, "use_0": "on"}).status_code == 302


def test_two_models_of_one_name_are_refused(operator: Client, llm: LlmServer) -> None:
    form = fields(looked(operator, llm.url)) | {"use_0": "on", "use_1": "on", "model_0": "a", "model_1": "a"}
    assert "Two models have the same name." in operator.post(address(), form).content.decode()
    assert not Server.objects.exists()


def test_secret_headers_reach_the_row_but_no_page(operator: Client, cog: CogServer) -> None:
    answer = looked(operator, cog.url, request_headers=json.dumps({"Authorization": SECRET}))
    assert SECRET not in answer.content.decode()
    again = operator.post(address(), {**fields(answer), "slots": "many"})
    assert again.status_code == 200
    assert SECRET not in again.content.decode()
    operator.post(address(), {**fields(answer), "server": "box-1"})
    assert read_headers(Server.objects.get(name="box-1").headers_encrypted) == {"Authorization": SECRET}
    assert SECRET not in str(list(AuditEntry.objects.values_list("detail", flat=True)))


def test_a_known_server_keeps_its_pool_and_slots(operator: Client, cog: CogServer) -> None:
    model = make_model("pictures")
    answer = looked(operator, cog.url)
    name = answer.context["found"].bodies[0]["server"]
    make_server(name, model=model, slots=5)
    answer = looked(operator, cog.url)
    assert "is registered in pool pictures" in answer.content.decode()
    assert operator.post(address(), fields(answer)).status_code == 302
    assert Server.objects.get(name=name).slots == 5
    assert Placement.objects.filter(server=name).count() == 2


def test_a_refusal_of_the_registry_is_shown_in_the_form(operator: Client, cog: CogServer) -> None:
    make_server("box-1", model=make_model("pictures"))
    make_model("zimg")
    form = fields(looked(operator, cog.url)) | {"server": "box-1", "model_0": "zimg"}
    page = operator.post(address(), form).content.decode()
    assert "zimg: Model zimg belongs to pool zimg" in page
    assert Placement.objects.filter(server="box-1").count() == 1


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://box-1", "Give the server&#x27;s address as an http(s) URL"),
        ("http://127.0.0.1:1", "Nothing answers at http://127.0.0.1:1"),
        ("", "This field is required."),
    ],
)
def test_an_address_without_a_server_is_an_error_of_the_field(
    operator: Client, url: str, expected: str
) -> None:
    assert expected in looked(operator, url).content.decode()


def test_headers_that_are_no_object_are_an_error(operator: Client) -> None:
    page = looked(operator, "http://127.0.0.1:1", request_headers="[]").content.decode()
    assert "Must be a JSON object" in page


def test_an_inspection_belongs_to_the_user_who_looked(operator: Client, boss: Client, cog: CogServer) -> None:
    form = fields(looked(operator, cog.url))
    for token in (form["inspection"], "x", encrypt("not JSON"), encrypt('{"Authorization": "stored"}')):
        assert boss.post(address(), {**form, "inspection": token}).status_code == 400
    assert not Server.objects.exists()


def test_only_users_who_may_add_servers_see_the_page(
    viewer: Client, operator: Client, client: Client
) -> None:
    page = address()
    assert viewer.get(page).status_code == viewer.post(page, {"url": "http://127.0.0.1:1"}).status_code == 403
    overview, servers = reverse("admin:index"), reverse("admin:gpus_server_changelist")
    assert page not in viewer.get(overview).content.decode()
    assert page not in viewer.get(servers).content.decode()
    assert page in operator.get(servers).content.decode()
    adder = User.objects.create_user("adder", is_staff=True)
    adder.user_permissions.add(Permission.objects.get(codename="add_server"))
    client.force_login(adder)
    assert client.get(page).status_code == 200
    with CogServer() as cog:
        answer = client.post(page, fields(looked(client, cog.url)))
    assert answer["Location"] == reverse("admin:index")
