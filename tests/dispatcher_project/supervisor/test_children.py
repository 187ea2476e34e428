from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dispatcher_project.supervisor.child import ChildSpec, Plan
from dispatcher_project.supervisor.children import (
    Local,
    Ports,
    embedded_redis_url,
    plan_of_up,
    settings_environment,
    url,
)
from dispatcher_project.supervisor.data_folder import DataFolder

REFUSED = "DISPATCHER_CALLBACK_REFUSED_ORIGINS"


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path)
    made.create()
    return made


def plan(
    folder: DataFolder, *, demo: int | None = 9001, local: Local | None = None, **environment: str
) -> Plan:
    with socket.create_server(("127.0.0.1", 0)) as flower:
        return plan_of_up(
            folder,
            host="127.0.0.1",
            ports=Ports(web=8000, flower=flower, demo=demo),
            environment={"REDIS_URL": embedded_redis_url(folder), **environment},
            password="open sesame",
            node_token="of the demo",
            local=local,
        )


def names(stages: tuple[tuple[ChildSpec, ...], ...]) -> list[set[str]]:
    return [{spec.name for spec in stage} for stage in stages]


def test_the_start_order_is_valkey_then_rows_then_services(folder: DataFolder) -> None:
    first, second, third = names(plan(folder).start)
    assert (first, second) == ({"valkey", "demo"}, {"prepare"})
    assert third == {"gpu_worker", "sweeps", "callbacks", "beat", "web", "flower"}


def test_web_stops_first_and_valkey_last(folder: DataFolder) -> None:
    order = [set(stage) for stage in plan(folder).stop]
    assert order == [{"web"}, {"gpu_worker"}, {"sweeps", "callbacks", "beat", "flower"}, {"demo"}, {"valkey"}]


def test_given_urls_replace_the_embedded_parts(folder: DataFolder) -> None:
    assert "valkey" not in set().union(*names(plan(folder, REDIS_URL="redis://elsewhere/0").start))
    given = {"REDIS_URL": "redis://r/0", "BROKER_URL": "amqp://b//", "DATABASE_URL": "postgresql://d/x"}
    made = settings_environment(folder, host="127.0.0.1", port=8000, given=given)
    assert {name: made[name] for name in given} == given
    made = settings_environment(folder, host="127.0.0.1", port=8000, given={"REDIS_URL": "redis://r/0"})
    assert made["BROKER_URL"] == "redis://r/0"


def test_commands_of_a_named_folder_use_the_store_of_its_up(folder: DataFolder) -> None:
    """Whatever their own environment says."""
    names = ("DISPATCHER_ARTIFACT_STORE", "DISPATCHER_ARTIFACT_URL")
    given = {"DISPATCHER_ARTIFACT_STORE": "s3://films", "DISPATCHER_ARTIFACT_URL": "https://files"}
    for environment in (given, {}):
        made = settings_environment(folder, host="127.0.0.1", port=8000, given=environment)
        assert {name: made[name] for name in names} == {name: environment.get(name, "") for name in names}


def test_embedded_parts_have_urls_for_each_library(folder: DataFolder) -> None:
    made = settings_environment(folder, host="0.0.0.0", port=80, given={})
    socket = folder.sockets / "valkey.sock"
    assert made["REDIS_URL"] == f"unix://{socket}?db=0"
    assert made["BROKER_URL"] == f"redis+socket://{socket}?virtual_host=0"
    assert made["DATABASE_URL"] == f"sqlite:///{folder.path}/db.sqlite3"
    assert made["DISPATCHER_PUBLIC_URL"] == "http://127.0.0.1:80"


def test_callbacks_to_ups_own_ports_are_refused(folder: DataFolder) -> None:
    started = {spec.name: spec for stage in plan(folder, **{REFUSED: "a.lan:1"}).start for spec in stage}
    given, web, flower = started["callbacks"].environment[REFUSED].split(",")
    assert (given, web) == ("a.lan:1", "8000")
    assert started["web"].environment["DISPATCHER_FLOWER_URL"].endswith(f":{flower}")


def test_without_demo_the_plan_has_no_demo_fleet(folder: DataFolder) -> None:
    made = plan(folder, demo=None)
    assert "demo" not in set().union(*names(made.start), *map(set, made.stop))


def test_no_password_on_a_command_line(folder: DataFolder) -> None:
    specs = [spec for stage in plan(folder).start for spec in stage]
    assert not any("sesame" in word for spec in specs for word in spec.command)
    knowing = {spec.name for spec in specs if "sesame" in spec.environment.get("FLOWER_BASIC_AUTH", "")}
    assert knowing == {"web", "flower"}


def test_the_web_gets_flowers_address(folder: DataFolder) -> None:
    made = {spec.name: spec.environment for stage in plan(folder).start for spec in stage}
    assert made["web"]["DISPATCHER_FLOWER_URL"].startswith("http://127.0.0.1:")


def test_flower_inherits_a_listening_socket(folder: DataFolder) -> None:
    (flower,) = (spec for stage in plan(folder).start for spec in stage if spec.name == "flower")
    (socket_number,) = flower.inherits
    assert str(socket_number) in flower.command
    assert not any("--port" in word for word in flower.command)


def test_a_gpu_worker_gets_its_grace_before_sigkill(folder: DataFolder) -> None:
    made = plan(folder, DISPATCHER_DEPLOY_GRACE_SECONDS="200")
    (worker,) = (spec for stage in made.start for spec in stage if spec.name == "gpu_worker")
    assert worker.stop_seconds > 210


def test_a_silent_beat_is_restarted(folder: DataFolder) -> None:
    (beat,) = (spec for stage in plan(folder).start for spec in stage if spec.name == "beat")
    assert beat.silent_after_seconds is not None


def test_a_plan_that_forgets_to_stop_a_child_is_refused() -> None:
    with pytest.raises(ValueError, match="but stopped"):
        Plan(start=((ChildSpec("web", ()),),), stop=())


@pytest.mark.parametrize(
    ("host", "expected"),
    [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("10.0.0.1", "http://10.0.0.1:1")],
)
def test_the_url_is_one_that_can_be_reached(host: str, expected: str) -> None:
    assert url(host, 1) == expected


def test_a_local_worker_holds_the_models_and_stops_with_the_other_workers(folder: DataFolder) -> None:
    made = plan(folder, local=Local("none", "myapp.models"))
    (worker,) = (spec for spec in made.start[-1] if spec.name == "local")
    assert worker.command[-4:] == ("--gpu", "none", "--models", "myapp.models")
    assert [set(stage) for stage in made.stop][1] == {"gpu_worker", "local"}


def test_only_the_demo_and_its_registration_get_its_token(folder: DataFolder) -> None:
    specs = [spec for stage in plan(folder).start for spec in stage]
    has = {spec.name for spec in specs if spec.environment.get("GPU_NODE_TOKEN") == "of the demo"}
    assert has == {"demo", "prepare"}
    assert not any("of the demo" in word for spec in specs for word in spec.command)
