"""Every shell block of the README, of the tutorials, and of pages about what clients do is run, page by page,
against the shared system. So are the Python blocks of the client's page.

The blocks stand as a reader copies them; only addresses and ports are replaced by those of the test. What a
block needs and a test has not (Docker, vLLM) is played by a server with the same HTTP API.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from tests.support.ports import free_port
from tests.support.servers.cog_server import CogServer
from tests.support.servers.llm_server import Behaviour, LlmServer
from tests.support.shell_blocks import languages, output_of, script_of, shell_blocks
from tests.support.system import forked_python
from tests.support.system.running import System
from tests.support.waiting import wait_for

CLIENT_TASKS = ("build_workflows", "erase_data", "large_files", "save_files", "schedules")
CLIENT_PAGE = ROOT / "docs/reference/client.md"
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
    *(ROOT / f"docs/how-to/{name}.md" for name in CLIENT_TASKS),
    *(ROOT / f"docs/reference/{name}.md" for name in ("api", "artifacts", "callbacks")),
    CLIENT_PAGE,
]
OTHERS = {"python", "json", "toml", "yaml", "text", "mermaid"}
"""Languages of blocks that are no shell."""
LONGEST_SECONDS = 240
SHORTER = {
    '"seconds": 10': '"seconds": 5',
    '"every_seconds": 20': '"every_seconds": 4',
    "Every 20 seconds": "Every 4 seconds",
}
_PORT = re.compile(
    r"(?<=127\.0\.0\.1:)\d{4,5}|(?<=192\.168\.1\.20:)\d{4,5}|(?<=--port )\d{4,5}|(?<=\", )9[12]00"
)
_JOB = re.compile(r'"job_id": ?"(\w{26})"')

pytestmark = pytest.mark.scenario


def name_of(page: Path) -> str:
    return page.stem


@pytest.fixture
def demo_fleet(system: System) -> Iterator[None]:
    """The models of the demo fleet that the pages use, on one server each."""
    models = {"flux": "async", "zimg": "sync", "trellis": "async", "ltx2": "async"}
    with contextlib.ExitStack() as stack:
        for model, mode in models.items():
            node = Node(NodeConfig(handlers={model: "gpu_host.node.simulator:run"}, slots=2, mode=mode))
            node.start()
            stack.callback(node.stop)
            fields = {
                "model_type": mode,
                "cancel_endpoint_template": "/cancel/{job_id}",
                "max_run_seconds": 60,
            }
            if mode == "async":
                fields |= {"poll_endpoint_template": "/status/{id}", "poll_interval": 0.2}
            system.operator.register(model, f"demo-{model}", f"{node.url}/{model}", 2, **fields)
        before = known_servers(system)
        yield
        wait_for(lambda: not running(system), seconds=60, what="the end of jobs that a page did not wait for")
        for name in known_servers(system) - before | {f"demo-{model}" for model in models}:
            wait_for(lambda name=name: is_forgotten(system, name), what=f"{name} without a quarantine")


def is_forgotten(system: System, name: str) -> bool:
    """Forget the server. A slot in quarantine, after a worker was killed, forbids that until it is free."""
    try:
        system.operator.ask("DELETE", f"/admin/servers/{name}")
    except AssertionError as refused:
        if "server_in_quarantine" not in str(refused):
            raise
        return False
    return True


def running(system: System) -> list[str]:
    page = system.operator.ask("GET", "/queue/jobs?status=running")
    return [job["job_id"] for job in page["results"]]


def known_servers(system: System) -> set[str]:
    return {row["server"] for row in system.operator.ask("GET", "/admin/servers?limit=200")["results"]}


@pytest.fixture
def stand_ins() -> Iterator[dict[str, str]]:
    """The port on a page of what a test does not have: the port of what plays it."""
    models = ("meta-llama/Llama-3.1-8B-Instruct", "llama3.2")
    with CogServer() as cog, LlmServer(Behaviour(models=models)) as llm:
        cog.gate.set()
        ports = {"5000": cog.url, "8001": llm.url, "11434": llm.url}
        yield {port: url.rpartition(":")[2] for port, url in ports.items()}


@pytest.fixture
def folder(tmp_path: Path, system: System) -> Path:
    """What a reader's clone looks like to the blocks: `manage.py`, `var`, and `python3` with all packages."""
    for python in (tmp_path / "bin/python3", tmp_path / ".venv/bin/python"):
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{forked_python.__file__}" "$@"\n')
        python.chmod(0o755)
    (tmp_path / "manage.py").symlink_to(ROOT / "manage.py")
    (tmp_path / "var").symlink_to(system.folder)
    (tmp_path / ".curlrc").write_text("fail-with-body\n")  # an error of the API ends the page's script
    return tmp_path


@contextlib.contextmanager
def counted(system: System) -> Iterator[set[str]]:
    """Count the jobs that are accepted meanwhile: the ids that the caller adds, and those that the API
    lists."""
    start = datetime.now(UTC).isoformat()
    seen: set[str] = set()
    yield seen
    wait_for(lambda: not unfinished_firings(system), seconds=60, what="the end of all runs of schedules")
    path: str | None = f"/queue/jobs?{urlencode({'limit': 200, 'created_after': start})}"
    while path is not None:
        page = system.operator.ask("GET", path)
        seen |= {job["job_id"] for job in page["results"]}
        path = page["next"] and page["next"].partition("/api/v1")[2]
    system.tenant.accepted += len(seen)


def unfinished_firings(system: System) -> list[str]:
    """Runs that schedules started: those of a paused one still make jobs."""
    schedules = [row["name"] for row in system.tenant.ask("GET", "/schedules?limit=200")["results"]]
    firings = [system.tenant.ask("GET", f"/schedules/{name}/firings") for name in schedules]
    return [
        row["run_id"]
        for page in firings
        for row in page["results"]
        if row.get("run_id") and not row["end_state"]
    ]


def run(script: str, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """The script's exit status and output. What it left in the background ends with it."""
    output = folder / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env={
                **environment,
                "PATH": f"{folder}/bin:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "CURL_HOME": str(folder),
            },
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait(), output.read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_blocks_of_a_page_do_what_it_says(
    page: Path, system: System, demo_fleet: None, stand_ins: dict[str, str], folder: Path
) -> None:
    blocks = shell_blocks(page)
    script = with_our_addresses(
        script_of(blocks), {"8000": system.facts["url"].rpartition(":")[2], **stand_ins}
    )
    with counted(system) as seen:
        status, output = run(script, folder, system.environment)
        seen |= set(_JOB.findall(output))
    assert status == 0, output[-3000:]
    for number, block in enumerate(blocks):
        assert shortened(block.shows) in output_of(number, output), (
            f"{page.name}:{block.line}\n{output_of(number, output)}"
        )


def with_our_addresses(script: str, ports: Mapping[str, str]) -> str:
    """With those ports, a free one for each other, no other host, and shorter runs and periods."""
    ours = dict(ports)
    for port in _PORT.findall(script):
        ours.setdefault(port, str(free_port()))
    script = _PORT.sub(lambda found: ours[found[0]], script)
    return shortened(script.replace("192.168.1.20", "127.0.0.1"))


def shortened(text: str) -> str:
    for before, after in SHORTER.items():
        text = text.replace(before, after)
    return text


def test_the_python_blocks_of_the_clients_page_run_from_top_to_bottom(
    system: System, demo_fleet: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DISPATCHER_URL", system.facts["url"])
    monkeypatch.setenv("DISPATCHER_API_KEY", system.facts["tenant_key"])
    names: dict[str, Any] = {}
    with counted(system):
        for block in shell_blocks(CLIENT_PAGE, "python"):
            text = "\n" * (block.line - 1) + block.text  # so that an error names the page's line
            code = compile(text, CLIENT_PAGE, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(eval(code, dict(names)))
            else:
                exec(code, names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_shell_block_is_written_as_one_and_is_valid(page: Path) -> None:
    assert {*languages(page)} <= {"bash", *OTHERS}, "a block without a language would not be run"
    for block in shell_blocks(page):
        checked = subprocess.run(
            ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
        )
        assert checked.returncode == 0, f"{page.name}:{block.line}\n{checked.stderr}"
        for path in re.findall(r"\bdeploy/[\w./-]+", block.text):
            assert (ROOT / path).exists() or path.endswith(".env"), f"{page.name}:{block.line}: {path}"
