"""Output of a run on a node, and its files."""

from __future__ import annotations

import logging
import os
import time
import urllib.request
from pathlib import Path

import pytest

from gpu_host.local.output import KEPT_SECONDS
from tests.support.node_process import start as start_process
from tests.support.node_process import stop as stop_process
from tests.support.waiting import wait_for

SAYS = "tests.gpu_host.node.custom_handlers:says"


def test_its_lines_go_to_the_log_with_its_job(start, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "gpu_host.node")
    start(handler=SAYS).dispatch({}, X_Job_Id="j-1", Idempotency_Key="a-1")
    lines = [one.getMessage() for one in caplog.records if one.getMessage().startswith("model_log")]
    assert lines == [
        'model_log job_id=j-1 attempt=a-1 model= stream=log text="half"',
        'model_log job_id=j-1 attempt=a-1 model= stream=log text="done step=1"',
    ]


def test_its_files_are_removed_an_hour_after_its_end(start):
    node = start(handler=SAYS, tidy_seconds=0.05)
    old, young = (Path(node.dispatch({}).body["result"]) for _ in range(2))
    assert (old / "image.png").read_bytes() == b"png"
    ago = time.time() - KEPT_SECONDS - 1
    os.utime(old, (ago, ago))
    wait_for(lambda: not old.exists())
    assert young.exists()


def test_the_files_of_a_run_that_goes_on_stay(start):
    node = start(mode="async", tidy_seconds=0.05)
    node.dispatch({"fault": "hang"})
    (run_id,) = node.node.admission.running()
    folder = node.node.admission.find(run_id).context.output_dir
    ended = folder.with_name("another")
    ended.mkdir()
    for path in (folder, ended):
        os.utime(path, (0, 0))
    wait_for(lambda: not ended.exists())
    assert folder.exists()


def test_its_files_survive_a_restart_of_the_node_and_are_removed_with_it(start):
    node = start(handler=SAYS)
    first = Path(node.dispatch({}).body["result"])
    node.node.restart()
    second = Path(node.dispatch({}).body["result"])
    assert first.parent == second.parent
    assert first.exists()
    node.node.stop()
    assert not first.parent.exists()


@pytest.mark.parametrize("command", [("-m", "gpu_host.node"), ("manage.py", "gpu_node")])
def test_the_log_of_a_node_has_lines_and_tracebacks(command: tuple[str, ...]):
    process = start_process(*command, "--handler", SAYS, "--port", "0")
    said = ""
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        request = urllib.request.Request(f"{url}/x", b'"fail"', {"X-Job-Id": "j-1"}, method="POST")
        with urllib.request.urlopen(request, timeout=30) as response:
            assert b"deep inside" in response.read()
        while "ValueError: deep inside" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
    finally:
        stop_process(process)
    assert "model_log job_id=j-1" in said
    assert "run_failed job_id=j-1" in said
