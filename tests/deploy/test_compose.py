"""The compose files: the settings each host needs, the ports it opens, and its commands."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import yaml
from django.core.management import get_commands, load_command_class
from jsonschema import Draft7Validator

from artifacts.store.place import read_place
from dispatcher_project.cli.commands import entry_of
from dispatcher_project.cli.main import BASE
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import die_with_parent, find_valkey
from dispatcher_project.web.__main__ import parser as web_parser
from jobs.wakes import CALLBACKS_QUEUE, SWEEPS_QUEUE, WORKFLOWS_QUEUE
from tests.support.compose_files import ONE_HOST, SEVERAL, WORKER, services, text_of
from tests.support.waiting import wait_for

_REQUIRED = re.compile(r"\$\{(\w+):\?[^}]+\}")
PASSWORD = "only-for-this-test"
_STORE = "DISPATCHER_ARTIFACT_STORE"


GPU_BOX = "compose.gpu.yaml"
OURS = [
    *((ONE_HOST, name) for name, one in services(ONE_HOST).items() if "build" in one),
    *((GPU_BOX, name) for name in services(GPU_BOX)),
]


SPEC = json.loads((Path(__file__).parent / "vendor/compose-spec.json").read_text())
"""The specification's own schema (github.com/compose-spec/compose-spec, 170098b, Apache 2.0)."""


@pytest.mark.parametrize("name", [ONE_HOST, SEVERAL, WORKER, GPU_BOX])
def test_a_file_is_as_the_specification_has_it(name: str) -> None:
    validator = Draft7Validator(SPEC)
    content = yaml.safe_load(text_of(name))
    assert [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(content)] == []
    service = next(iter(content["services"].values()))
    service["restrat"] = "no"
    assert not validator.is_valid(content), "a misspelt key is found"


def test_a_file_names_only_services_volumes_and_networks_that_there_are() -> None:
    """As `docker compose config` checks besides: of the first host's two files together."""
    one, several = (yaml.safe_load(text_of(name)) for name in (ONE_HOST, SEVERAL))
    for file in (one, {**one, **several}, *(yaml.safe_load(text_of(name)) for name in (WORKER, GPU_BOX))):
        for name, service in file["services"].items():
            assert set(service.get("depends_on", ())) <= set(file["services"]), name
            named = {one.partition(":")[0] for one in service.get("volumes", ())}
            assert {one for one in named if not one.startswith(".")} <= set(file.get("volumes", ())), name
            assert set(service.get("networks", ())) <= {"default", *one["networks"]}, name


def test_a_worker_host_needs_none_of_the_first_hosts_variables() -> None:
    """A required variable stops compose wherever it stands, also in a service that is not started."""
    assert set(_REQUIRED.findall(text_of(ONE_HOST))) == {"POSTGRES_PASSWORD", "REDIS_PASSWORD"}
    assert text_of(WORKER).count("$") == len(_REQUIRED.findall(text_of(WORKER))) == 1
    assert _REQUIRED.findall(text_of(WORKER)) == [_STORE]


def test_a_worker_host_runs_the_first_hosts_worker_without_dependencies() -> None:
    first = services(ONE_HOST)
    for name, service in services(WORKER).items():
        there = {key: value for key, value in first[name].items() if key not in ("depends_on", "networks")}
        environment = {**there["environment"], _STORE: service["environment"][_STORE]}
        assert service == {**there, "environment": environment}


def test_containers_of_a_host_share_the_store_of_artifacts_and_those_of_several_name_it() -> None:
    ours = services(ONE_HOST)
    named = {name for name, service in services(SEVERAL).items() if _STORE in service.get("environment", ())}
    assert named == {"migrate", "web", "gpu_worker", "sweeps", "callbacks"}
    for name in named:
        default = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", ours[name]["environment"][_STORE])
        assert read_place(default) == (Path("/data/artifacts"), True)
        assert "data:/data" in ours[name]["volumes"], name
        assert _REQUIRED.match(services(SEVERAL)[name]["environment"][_STORE])
    assert _REQUIRED.match(services(WORKER)["gpu_worker"]["environment"][_STORE])


@pytest.mark.parametrize(("file", "name"), [*OURS, (WORKER, "gpu_worker")])
def test_files_on_their_way_are_on_the_disk(file: str, name: str) -> None:
    service = services(file)[name]
    folder = service["environment"]["TMPDIR"]
    assert f"spool:{folder}" in service["volumes"]
    assert not any(one.startswith(folder) for one in service["tmpfs"]), "a tmpfs is memory"


def test_the_image_has_the_extra_s3() -> None:
    (program,) = re.findall(r'RUN sed "(.+)" constraints.txt > packages.txt', text_of("Dockerfile"))
    done = subprocess.run(
        ["sed", program, ROOT / "constraints.txt"], capture_output=True, text=True, check=True
    )
    packages = re.findall(r"(?m)^([\w-]+)==\S+ \\$", done.stdout)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [re.match(r"[\w-]+", one)[0] for one in project["optional-dependencies"]["s3"]]  # type: ignore[index]
    assert {*wanted, "botocore", "s3transfer", "jmespath", "python-dateutil"} <= set(packages)
    assert "pytest" not in packages


def test_database_and_redis_are_published_to_a_private_address_only() -> None:
    ours = services(ONE_HOST)
    shared = {name: one for name, one in services(SEVERAL).items() if "ports" in one}
    assert {name for name, service in ours.items() if "ports" in service} == {"web"}
    shown = {name: service["ports"] for name, service in shared.items()}
    assert shown.keys() == {"postgres", "redis"}
    for (port,) in shown.values():
        assert _REQUIRED.match(port)[1] == "DISPATCHER_PRIVATE_ADDRESS"  # type: ignore[index]


def test_only_the_web_is_published_and_only_to_its_host() -> None:
    ours = yaml.safe_load(text_of(ONE_HOST))
    assert ours["networks"] == {"store": {"internal": True}}
    for name in ("postgres", "redis", "flower"):
        assert ours["services"][name]["networks"] == ["store"]
        assert "ports" not in ours["services"][name]
    assert ours["services"]["web"]["ports"] == [
        "${DISPATCHER_LISTEN:-127.0.0.1}:${DISPATCHER_PORT:-8000}:8000"
    ]
    for name in ("postgres", "redis"):
        service = services(SEVERAL)[name]
        assert "default" in service["networks"], f"{name}: an internal network publishes nothing"


@pytest.mark.parametrize(("file", "name"), OURS)
def test_a_service_of_ours_is_confined_and_bounded(file: str, name: str) -> None:
    service = services(file)[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ulimits"] == {"nofile": 65536}
    assert "pids_limit" in service
    assert ("mem_limit" in service) == (file == ONE_HOST), "models take what they take"
    assert "privileged" not in service


def test_a_gpu_box_shows_its_node_to_a_private_address_and_gives_it_no_secret() -> None:
    box = services(GPU_BOX)
    assert {name for name, service in box.items() if "ports" in service} == {"node"}
    assert box["node"]["ports"] == ["${DISPATCHER_PRIVATE_ADDRESS:-127.0.0.1}:9000:9000"]
    assert (box["node"]["env_file"], box["pinned"]["env_file"]) == (
        "models.env",
        ["dispatcher.env", "models.env"],
    )
    assert box["node"]["environment"]["DJANGO_SETTINGS_MODULE"] == BASE, "the image's own needs a secret key"
    for service in box.values():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_the_image_runs_as_a_numeric_user() -> None:
    user = re.findall(r"(?m)^USER (\S+)$", text_of("Dockerfile"))
    assert user == ["10001:10001"], "Kubernetes' runAsNonRoot wants a number"


@pytest.mark.parametrize(("file", "name"), OURS)
def test_a_service_runs_an_existing_command_and_is_restarted(file: str, name: str) -> None:
    service = services(file)[name]
    command, *words = service["command"]
    entry = entry_of(command)
    assert entry is not None
    assert entry.shown == command
    if entry.name == "web":
        web_parser().parse_args(words)
    elif entry.name in get_commands():
        load_command_class(get_commands()[entry.name], entry.name).create_parser("", command).parse_args(
            words
        )
    assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")


def test_the_documents_run_commands_of_the_image() -> None:
    text = (ROOT / "docs/how-to/deploying.md").read_text() + text_of(ONE_HOST)
    named = re.findall(r"run --rm (\w+) ([\w-]+)", text)
    assert named
    assert all("entrypoint" not in services(ONE_HOST)[service] for service, _ in named)
    assert [command for _, command in named if entry_of(command) is None] == []


def test_the_image_builds_the_wheel_with_the_locked_packages_and_checks_its_health() -> None:
    build, final = text_of("Dockerfile").split("\nFROM ")[1:]
    assert build.count("--require-hashes --no-deps --only-binary :all:") == 2
    assert "uv build --offline --wheel" in build
    assert "--no-deps --no-index /wheel/*.whl" in build
    assert "pip" not in re.sub("#.*", "", final)
    assert 'ENTRYPOINT ["gpu-dispatcher"]' in final
    (check,) = re.findall(r'CMD \["python", "-c", "(.+)"\]', final)
    compile(check, "HEALTHCHECK", "exec")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis.Redis]:
    """Redis by the very command of the compose file, on a socket."""
    binary = find_valkey()
    if binary is None:
        pytest.skip("no Valkey or Redis server binary")
    _, *options = [_REQUIRED.sub(PASSWORD, word) for word in services(ONE_HOST)["redis"]["command"]]
    process = subprocess.Popen(
        [binary, *options, "--port", "0", "--unixsocket", "s", "--dir", "."],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    wait_for((tmp_path / "s").exists, what="its socket")
    yield redis.Redis(unix_socket_path=str(tmp_path / "s"), decode_responses=True)
    process.terminate()
    process.wait(60)


def test_redis_needs_its_password_and_evicts_nothing(
    server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(redis.AuthenticationError):
        server.ping()
    path = server.connection_pool.connection_kwargs["path"]
    known = redis.Redis(unix_socket_path=path, password=PASSWORD, decode_responses=True)
    assert known.ping()
    assert known.config_get("appendonly", "maxmemory-policy", "latency-tracking") == {
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
        "latency-tracking": "no",
    }


def test_each_of_our_own_queues_has_a_worker() -> None:
    """Without one, sweeps do the work of a queue, seconds late."""
    commands = [service["command"] for service in services(ONE_HOST).values() if "command" in service]
    named = [command[command.index("--queues") + 1] for command in commands if command[0] == "queue-worker"]
    assert sorted(",".join(named).split(",")) == sorted([CALLBACKS_QUEUE, SWEEPS_QUEUE, WORKFLOWS_QUEUE])
