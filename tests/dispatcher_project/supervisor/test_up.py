"""What `up` chooses and shows before and after its processes; tests/scenarios/test_up.py runs them."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.supervisor import up
from dispatcher_project.supervisor.children import DEMO_FLEET, Ports
from dispatcher_project.supervisor.data_folder import ADMIN_IS_ANOTHERS, DataFolder
from foundation.program import ROOT
from tests.support.ports import free_port


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def choose(closing: ExitStack, web: int = 8000, **options: Any) -> Ports:
    """The ports of an `up` that keeps running until the test ends."""
    asked = argparse.Namespace(host="127.0.0.1", port=web, no_demo=False, **options)
    ports = up._ports(asked)
    closing.enter_context(ports.flower)
    return ports


@pytest.fixture
def web_port() -> int:
    return free_port()


def test_two_ups_at_once_choose_different_ports_for_flower(closing: ExitStack, web_port: int) -> None:
    first, second = choose(closing, web_port), choose(closing, web_port)
    assert first.flower_port != second.flower_port


def test_flower_does_not_take_the_webs_port(
    closing: ExitStack, web_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_FLOWER_PORT", web_port)
    assert choose(closing, web_port).flower_port != web_port


def test_the_demo_fleet_does_not_take_the_webs_port(
    closing: ExitStack, web_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_DEMO_PORT", web_port - 1)
    assert choose(closing, web_port).demo == web_port + 1


def shown(folder: DataFolder, ports: Ports) -> tuple[dict[str, object], str]:
    """up.json's facts and what the terminal says."""
    environment = {"REDIS_URL": "redis://r", "DATABASE_URL": "postgresql://d"}
    facts = up._facts(folder, host="127.0.0.1", ports=ports, environment=environment)
    return facts, up._welcome(facts, folder=folder, password="sesame", seconds=1.0, callbacks="10.1.0.0/16")


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path)
    made.create()
    return made


def test_the_admins_password_is_shown(folder: DataFolder, closing: ExitStack, web_port: int) -> None:
    folder.write("secrets.json", {"admin_password": "sesame", "api_key": "k", "tenant_key": "t"})
    facts, text = shown(folder, choose(closing, web_port))
    assert facts["admin_password"] == "sesame"
    assert "/admin/        admin / sesame\n" in text
    assert f"{facts['url']}/admin/flower/        same login\n" in text


def test_every_port_is_shown(folder: DataFolder, closing: ExitStack, web_port: int) -> None:
    folder.write("secrets.json", {"admin_password": "sesame", "api_key": "k", "tenant_key": "t"})
    servers = [{"endpoint": f"http://127.0.0.1:{port}/m"} for port in (9002, 9001)]
    folder.write(DEMO_FLEET, {"servers": servers})
    ports = choose(closing, web_port)
    _, text = shown(folder, ports)
    assert f"Ports    web {web_port}; Flower {ports.flower_port}; demo servers 9001, 9002\n" in text
    assert "Callbacks reach public addresses and 10.1.0.0/16 (DISPATCHER_CALLBACK_NETWORKS)." in text


def test_a_shell_gets_the_address_and_the_keys(folder: DataFolder, closing: ExitStack, web_port: int) -> None:
    folder.write("secrets.json", {"admin_password": "sesame", "api_key": "the operator's", "tenant_key": "t"})
    facts, text = shown(folder, choose(closing, web_port))
    assert f". {folder.path}/up.env    sets API, KEY and OPERATOR_KEY" in text
    folder.write_text("up.env", up._shell_variables(facts, Path("/srv/my data")))
    script = '. "$0"; env'
    printed = subprocess.run(
        ["sh", "-c", script, folder.path / "up.env"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {
        f"API=http://127.0.0.1:{web_port}/api/v1",
        "KEY=t",
        "OPERATOR_KEY=the operator's",
        f"DISPATCHER_URL=http://127.0.0.1:{web_port}",
        "DISPATCHER_API_KEY=t",
        "DISPATCHER_DATA_DIR=/srv/my data",
    } <= set(printed)
    assert "DISPATCHER_DATA_DIR" not in up._shell_variables(facts, None)


def test_without_a_demo_the_next_step_is_a_command_that_an_installed_wheel_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu-dispatcher", "up"])
    assert "`gpu-dispatcher register http://HOST:PORT`" in up._first_step({}, demo=False)


def test_commands_to_copy_name_a_folder_that_is_not_the_default(tmp_path: Path) -> None:
    facts = {"url": "http://x", "tenant_key": "k"}
    there = tmp_path / "my data"
    text = up._first_step(facts, up.to_name(DataFolder(there)), demo=True)
    assert f"""workflow run film '{{"prompt": "a fox in the snow"}}' --data-dir '{there}'""" in text
    text = up._first_step(facts, up.to_name(DataFolder(ROOT / "var")), demo=True)
    assert "--data-dir" not in text


def test_an_existing_admins_password_is_not_shown(
    folder: DataFolder, closing: ExitStack, web_port: int
) -> None:
    known = {"admin_password": "sesame", "api_key": "k", "tenant_key": "t", ADMIN_IS_ANOTHERS: True}
    folder.write("secrets.json", known)
    facts, text = shown(folder, choose(closing, web_port))
    assert facts["admin_password"] is None
    assert "exists already" in text
    assert "manage.py changepassword admin" in text
    assert "sesame" not in text


def test_the_python_path_still_leads_to_models_after_the_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"models{os.pathsep}/opt/models")
    up.keep_python_path()
    assert os.environ["PYTHONPATH"] == f"{tmp_path}/models{os.pathsep}/opt/models"
