"""The services of deploy/compose.yaml, each on a machine of its own: commands, environment, health checks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher_project.supervisor.data_folder import ROOT
from tests.deploy.box import Box, boxes, missing
from tests.support.compose_files import ONE_HOST, services
from tests.support.waiting import wait_for

PASSWORD = "only-for-this-test"
PYTHON = str(ROOT / ".venv/bin/python")
ENTRYPOINT = (PYTHON, "/usr/local/bin/gpu-dispatcher")
SCRIPT = "import sys\nfrom dispatcher_project.cli.main import gpu_dispatcher\nsys.exit(gpu_dispatcher())\n"
"""What the wheel installs under that name."""
ENVIRONMENT = f"""
DJANGO_SECRET_KEY={"k" * 60}
DJANGO_ALLOWED_HOSTS=dispatcher.example.com,127.0.0.1
DATABASE_URL=postgresql://dispatcher:{PASSWORD}@postgres:5432/dispatcher
REDIS_URL=redis://:{PASSWORD}@redis:6379/0
DISPATCHER_PUBLIC_URL=https://dispatcher.example.com
FLOWER_BASIC_AUTH=staff:{PASSWORD}
"""
"""What an operator fills in in dispatcher.env."""
IMAGE = {
    "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.production",
    "DISPATCHER_DATA_DIR": "/data",
    "PYTHONPATH": str(ROOT),
    "DISPATCHER_NO_BOOTSTRAP": "1",
}
"""ENV of the Dockerfile; the sources in place of the wheel."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::[?-][^}]*)?\}")
_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    given = dict(line.split("=", 1) for line in ENVIRONMENT.split())
    chosen = {name: _DEFAULT.sub(r"\1", value) for name, value in service.get("environment", {}).items()}
    return {**IMAGE, **given, **chosen}


def start(box: Box, service: dict[str, Any]) -> None:
    words = shlex.join([*ENTRYPOINT, *service["command"]])
    exports = "; ".join(
        f"export {name}={shlex.quote(value)}" for name, value in environment_of(service).items()
    )
    done = box.run(f"mkdir -p /data; cd /data; {exports}; setsid {words} > /data/log 2>&1 < /dev/null &")
    assert done.returncode == 0, done.stdout


def is_healthy(box: Box, service: dict[str, Any]) -> bool:
    kind, *words = service["healthcheck"]["test"]
    assert kind == "CMD"
    words[0] = PYTHON
    return box.run(shlex.join(words)).returncode == 0


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Box]]:
    if reason := missing():
        pytest.skip(reason)
    addresses = {name: f"10.78.0.{number}" for number, name in enumerate(services(ONE_HOST), start=1)}
    with boxes(tmp_path, addresses) as found:
        hosts = "\n".join(f"{address} {name}" for name, address in addresses.items())
        for box in found.values():
            box.run("cat >> /etc/hosts", typed=hosts + "\n")
            box.run(f"cat > {ENTRYPOINT[1]}", typed=SCRIPT)
        yield found


@pytest.mark.by_hand
@pytest.mark.timeout(900)
def test_the_services_become_healthy_and_run_a_command(machines: dict[str, Box]) -> None:
    ours = services(ONE_HOST)
    done = machines["postgres"].run(
        "apt-get install postgresql; cd /; systemctl restart postgresql\n"
        "runuser -u postgres -- psql -v ON_ERROR_STOP=1 <<END\n"
        f"CREATE ROLE dispatcher LOGIN PASSWORD '{PASSWORD}'; CREATE DATABASE dispatcher OWNER dispatcher;\n"
        "ALTER SYSTEM SET listen_addresses = '*';\nEND\n"
        "echo 'host all all 10.78.0.0/24 scram-sha-256' >> /etc/postgresql/*/main/pg_hba.conf\n"
        "systemctl restart postgresql\n"
        f"{ours['postgres']['healthcheck']['test'][1]}"
    )
    assert done.returncode == 0, done.stdout
    _, *words = [_VARIABLE.sub(PASSWORD, word) for word in ours["redis"]["command"]]
    # the image listens on all addresses, too
    store = shlex.join(["redis-server", *words, "--bind", "0.0.0.0"])
    machines["redis"].run(f"mkdir -p /data; cd /data; setsid {store} > /data/log 2>&1 < /dev/null &")
    migrated = machines["migrate"].run(command("migrate"))
    assert migrated.returncode == 0, migrated.stdout
    running = [name for name, service in ours.items() if "build" in service and name != "migrate"]
    assert len(running) == 6
    for name in running:
        start(machines[name], ours[name])
    for name in running:
        wait_for(lambda name=name: is_healthy(machines[name], ours[name]), seconds=200, what=name)
    key = machines["migrate"].run(command("create_key", "--tenant", "ops", "--operator"))
    assert "api key: " in key.stdout
    said = machines["migrate"].run(command("doctor")).stdout
    assert re.search(r"workers: 3 answer", said), said


def command(*words: str) -> str:
    """As `docker compose run --rm migrate …`."""
    service = yaml.safe_load((ROOT / "deploy" / ONE_HOST).read_text())["services"]["migrate"]
    exports = "; ".join(
        f"export {name}={shlex.quote(value)}" for name, value in environment_of(service).items()
    )
    return f"mkdir -p /data; cd /data; {exports}; {shlex.join([*ENTRYPOINT, *words])}"
