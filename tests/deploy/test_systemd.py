"""The systemd units: systemd takes them, and what they start takes what it is given."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from dispatcher_project.settings.dispatcher import DispatcherSettings
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.web.server import MAX_DESCRIPTORS, RESERVED_DESCRIPTORS
from gpu_host.node.config import GRACE_SECONDS
from jobs.wakes import CALLBACKS_QUEUE, SWEEPS_QUEUE, WORKFLOWS_QUEUE

UNITS = sorted((ROOT / "deploy/systemd").iterdir())
PYTHON = "/opt/dispatcher/.venv/bin/python"
PINNED = ROOT / "deploy/systemd/dispatcher-pinned-worker@.service"
NODE = ROOT / "deploy/systemd/dispatcher-node@.service"
LOADS_MODELS = (PINNED, NODE)
OPTIONS = {"PINNED_OPTIONS": "--models myapp.models", "NODE_OPTIONS": "--handler myapp.models:Flux"}


def lines(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def started(unit: Path, **variables: str) -> list[str]:
    """The words of ExecStart as systemd makes them: `$NAME` alone becomes its words, `${NAME}` stays one."""
    (command,) = lines(unit, "ExecStart")
    words: list[str] = []
    for word in command.replace("%i", "0").split():
        if word.startswith("$") and not word.startswith("${"):
            words += shlex.split(variables[word[1:]])
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], word))
    return words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    for unit in UNITS:  # an instance of each template
        name = unit.name.replace("@.", "@0.")
        (tmp_path / name).write_text(unit.read_text().replace(PYTHON, sys.executable))
    files = [str(file) for file in tmp_path.iterdir()]
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).splitlines()
    assert [line for line in said if "dispatcher" in line] == [], (
        "what it says of the machine's own is not ours"
    )


@pytest.mark.parametrize(
    "unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name
)
def test_a_unit_starts_an_existing_command(unit: Path) -> None:
    python, *words = started(unit, **OPTIONS)
    assert python == PYTHON
    if words[0] == "manage.py":
        _, command, *rest = words
        load_command_class(get_commands()[command], command).create_parser("", command).parse_args(rest)
    if unit.name != "dispatcher-migrate.service":
        assert lines(unit, "Restart") == ["always"], "also of a beat that ended itself"


def test_every_option_of_a_pinned_worker_can_be_set() -> None:
    given = '--models myapp.models,other --servers /etc/llms.toml --pool images --name "box-a" --slots 2'
    *_, gpu, zero = started(PINNED, PINNED_OPTIONS="")
    assert (gpu, zero) == ("--gpu", "0")
    parser = load_command_class("dispatcher_project", "gpu_worker").create_parser("", "gpu_worker")
    found = parser.parse_args(started(PINNED, PINNED_OPTIONS=given)[3:])
    assert (found.models, found.servers, found.pool) == (
        ["myapp.models", "other"], Path("/etc/llms.toml"), ["images"],
    )  # fmt: skip
    assert (found.name, found.slots, found.gpu) == ("box-a", 2, "0")


def test_the_options_of_one_gpu_override_those_of_all() -> None:
    """systemd: a later file's setting replaces an earlier one's."""
    assert lines(PINNED, "EnvironmentFile") == [
        "/etc/dispatcher/dispatcher.env",
        "-/etc/dispatcher/pinned.env",
        "-/etc/dispatcher/pinned-%i.env",
    ]


def test_a_node_reads_no_secret_of_the_dispatcher() -> None:
    assert lines(NODE, "EnvironmentFile") == ["-/etc/dispatcher/node.env", "/etc/dispatcher/node-%i.env"]
    (seconds,) = lines(NODE, "TimeoutStopSec")
    assert int(seconds) > GRACE_SECONDS


SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
_EXPOSURE = re.compile(r"Overall exposure level for \S+: ([0-9.]+)")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_units_have_few_rights_and_bounded_resources(unit: Path) -> None:
    wanted = {
        "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes",
        "CapabilityBoundingSet": "", "AmbientCapabilities": "", "UMask": "0077", "RestrictSUIDSGID": "yes",
        "ProtectKernelTunables": "yes", "ProtectControlGroups": "yes", "SystemCallArchitectures": "native",
        "StateDirectory": "dispatcher", "User": "dispatcher",
    }  # fmt: skip
    assert {name: lines(unit, name) for name in wanted} == {name: [value] for name, value in wanted.items()}
    (descriptors,), (tasks,) = lines(unit, "LimitNOFILE"), lines(unit, "TasksMax")
    assert int(descriptors) >= 4096
    assert int(tasks) >= 128
    if unit not in LOADS_MODELS:
        assert lines(unit, "MemoryMax")
        assert lines(unit, "PrivateDevices") == ["yes"]
        assert lines(unit, "SystemCallFilter")[0] == "@system-service"
        assert lines(unit, "SystemCallErrorNumber") == ["EPERM"], "a rare call fails, and ends nothing"


def test_the_webs_open_files_cover_its_connections() -> None:
    (descriptors,) = lines(ROOT / "deploy/systemd/dispatcher-web.service", "LimitNOFILE")
    settings = DispatcherSettings()
    assert int(descriptors) == MAX_DESCRIPTORS >= 2 * settings.web_connections + RESERVED_DESCRIPTORS


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_systemd_rates_the_units_exposure_as_low(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _EXPOSURE.search(done.stdout)
    if found is None:
        pytest.skip("this systemd judges no files")
    assert float(found[1]) <= (5.0 if unit in LOADS_MODELS else 2.0)


def test_only_the_web_listens_beyond_loopback() -> None:
    """And the web only behind its proxy."""
    for unit in SERVICES:
        words = started(unit, **OPTIONS)
        hosts = [word for word in words if re.search(r"0\.0\.0\.0|::", word)]
        assert hosts == [], f"{unit.name} listens at {hosts}"


def test_the_walk_starts_a_worker_for_each_of_our_own_queues() -> None:
    """Without one, sweeps do the work of a queue, seconds late."""
    enabled = re.findall(r"dispatcher-queue-worker@(\w+)", (ROOT / "docs/how-to/deploying.md").read_text())
    assert set(enabled) == {CALLBACKS_QUEUE, SWEEPS_QUEUE, WORKFLOWS_QUEUE}
