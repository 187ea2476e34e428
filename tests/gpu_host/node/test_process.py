"""The node in a process of its own: by Django's command, without Django, and as a demo fleet."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.node_process import ROOT, start, stop
from tests.support.waiting import wait_for

SIMULATOR = "gpu_host.node.simulator:run"


def farewell(left: str) -> str:
    return (
        f"Stopping: {left}; results can be fetched meanwhile (30 s at most). "
        "A second signal ends the node at once.\n"
    )


def get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)  # type: ignore[no-any-return]


@pytest.mark.parametrize("command", [("-m", "gpu_host.node"), ("manage.py", "gpu_node")])
def test_a_node_serves_until_it_is_stopped(command):
    process = start(*command, "--handler", f"flux={SIMULATOR}", "--slots", "3", "--port", "0")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.endswith(" serves 3 slots\n"), line + process.stdout.read()
        assert get(line.split()[0] + "/health")["max_concurrent"] == 3
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == farewell("no run is left")
        assert process.wait(20) == 0
    finally:
        stop(process)


@pytest.mark.parametrize("command", [("-m", "gpu_host.node"), ("manage.py", "gpu_node")])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGINT, signal.SIGTERM),
    ],
)
def test_a_second_signal_does_not_wait_for_the_runs(command, first, second):
    options = ("--handler", SIMULATOR, "--port", "0", "--slots", "2", "--mode", "async")
    process = start(*command, *options)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        for _ in range(2):
            request = urllib.request.Request(f"{url}/x", b'{"fault": "hang"}', method="POST")
            with urllib.request.urlopen(request, timeout=10):
                pass
        process.send_signal(first)
        assert process.stdout.readline() == farewell("2 runs end first")
        assert get(f"{url}/health")["status"] == "draining"
        process.send_signal(second)
        assert process.wait(10) == -second
    finally:
        stop(process)


def test_a_node_with_a_closed_stdout_lets_its_runs_end():
    process = start("-m", "gpu_host.node", "--handler", SIMULATOR, "--port", "0")
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        process.stdout.close()
        process.stdout = None
        request = urllib.request.Request(f"{url}/x", b'{"seconds": 2, "echo": 1}', method="POST")
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(lambda: urllib.request.urlopen(request, timeout=20).read())
            wait_for(lambda: get(f"{url}/health")["active_jobs"] == 1)
            process.send_signal(signal.SIGTERM)
            assert json.loads(answer.result())["status"] == "success"
    finally:
        stop(process)


def test_a_node_that_cannot_start_reports_why():
    done = subprocess.run(
        [sys.executable, "-m", "gpu_host.node", "--handler", "nope:run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "nope" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_fleet_serves_its_models_lean_and_without_django(tmp_path):
    ready = tmp_path / "ready.json"
    process = start("-m", "gpu_host.node.demo", "--ready-file", str(ready), "--zimg", "1", "--trellis", "0")
    try:
        found = json.loads(wait_for(lambda: ready.exists() and ready.read_text()))
        assert found["pid"] == process.pid
        servers = {server["model"]: server for server in found["servers"]}
        assert {model: server["slots"] for model, server in servers.items()} == {
            "zimg": 1,
            "flux": 2,
            "ltx2": 2,
        }
        assert servers["zimg"]["model_fields"]["model_type"] == "sync"
        assert servers["flux"]["model_fields"]["poll_endpoint_template"] == "/status/{id}"
        request = urllib.request.Request(servers["flux"]["endpoint"], b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=10) as response:
            assert json.load(response)["status"] == "processing"
        maps = Path(f"/proc/{process.pid}/status")
        if maps.exists():
            resident_kb = int(maps.read_text().split("VmRSS:")[1].split()[0])
            assert resident_kb < 35_000
    finally:
        code = stop(process)
    assert code == 0


def test_the_demo_fleet_avoids_a_taken_port_and_returns_to_its_registered_ports(tmp_path):
    ready = tmp_path / "ready.json"

    def serve(wanted: int) -> list[str]:
        """Start with a registry there, and return the endpoints; the file of the start before is replaced."""
        before = ready.read_text() if ready.exists() else ""
        command = ["-m", "gpu_host.node.demo", "--port-base", str(wanted), "--ready-file", str(ready)]
        process = start(*command, "--move", "--trellis", "0", "--ltx2", "0")
        try:
            wait_for(lambda: ready.exists() and ready.read_text() != before)
        finally:
            stop(process)
        return [server["endpoint"] for server in json.loads(ready.read_text())["servers"]]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        starts = [serve(port - 1)]  # its second server finds the port taken
        assert not any(f":{port}/" in endpoint for endpoint in starts[0])

        def comes_back() -> bool:
            """Another program may have taken one of its ports meanwhile: a later start has them again."""
            starts.append(serve(port - 1))
            return starts[-1] == starts[-2]

        wait_for(comes_back)


def test_the_demo_fleet_ends_with_its_parent(tmp_path):
    if sys.platform != "linux":
        pytest.skip("the kernel signals children only on Linux")
    ready = tmp_path / "ready.json"
    parent = start(
        "-c",
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-m', 'gpu_host.node.demo', '--ready-file', {str(ready)!r}])\n"
        "time.sleep(60)",
    )
    try:
        found = json.loads(wait_for(lambda: ready.exists() and ready.read_text()))
    finally:
        parent.kill()
        parent.wait()
        if parent.stdout:
            parent.stdout.close()
    wait_for(lambda: not _serves(found["servers"][0]["endpoint"]))


def test_no_module_of_the_node_needs_django():
    code = "import sys, gpu_host.node.demo, gpu_host.node.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"django", "redis", "celery", "requests", "structlog"}


def _serves(endpoint: str) -> bool:
    try:
        get(endpoint.rsplit("/", 2)[0] + "/health")
    except OSError:
        return False
    return True
