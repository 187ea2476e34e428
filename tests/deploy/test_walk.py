"""The walk of docs/how-to/deploying.md, line by line, on two machines of their own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from tests.deploy.box import Box, boxes, missing

PAGE = ROOT / "docs/how-to/deploying.md"
ADDRESSES = {"box-0": "10.77.0.1", "box-1": "10.77.0.2"}
_STEP = re.compile(
    r"^<!-- on: (?P<on>[\w-]+)(?:; takes: (?P<takes>[^;\s]+))?(?:; asks: (?P<asks>\w+))?"
    r"(?:; shows: (?P<shows>.+?))? -->\n```bash\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    """on: a box, or both. takes: a file of box-0. asks: what its reader types. shows: a text of its
    output."""

    on: str
    takes: str
    asks: str
    shows: str
    text: str


def steps() -> list[Step]:
    return [
        Step(found["on"], found["takes"] or "", found["asks"] or "", found["shows"] or "", found["text"])
        for found in _STEP.finditer(PAGE.read_text())
    ]


def test_the_walk_has_valid_steps() -> None:
    found = steps()
    assert len(found) >= 7
    assert {step.on for step in found} == {"both", *ADDRESSES}
    for step in found:
        checked = subprocess.run(["bash", "-n"], input=step.text, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
        for path in re.findall(r"(?<![\w/])deploy/[\w./-]+", step.text):
            assert (ROOT / path).exists() or path == "deploy/systemd/", path


@pytest.fixture
def two(tmp_path: Path) -> Iterator[dict[str, Box]]:
    if reason := missing():
        pytest.skip(reason)
    with boxes(tmp_path, ADDRESSES) as found:
        for box in found.values():
            box.run("echo '10.77.0.1 dispatcher.example.com' >> /etc/hosts")
            # as Debian's own Python does
            box.environment["SSL_CERT_FILE"] = "/etc/ssl/certs/ca-certificates.crt"
        yield found


@pytest.mark.by_hand
@pytest.mark.timeout(900)
def test_the_lines_of_the_walk_lead_to_a_result(two: dict[str, Box]) -> None:
    known: dict[str, str] = {}
    for step in steps():
        for name in ADDRESSES if step.on == "both" else [step.on]:
            box, text = two[name], step.text.replace("pinned-worker@0", "pinned-worker@none")  # no GPU
            if step.takes:
                box.path(step.takes).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(two["box-0"].path(step.takes), box.path(step.takes))
            begun = time.monotonic()
            done = box.run(text, typed=f"{known.get(step.asks, '')}\n")
            sys.stdout.write(f"--- {name} {time.monotonic() - begun:.1f} s\n{done.stdout}\n")
            assert done.returncode == 0, f"{text}\n{done.stdout}"
            assert step.shows in done.stdout, f"{text}\n{done.stdout}"
            if found := re.findall(r"api key: (\S+)", done.stdout):
                known["KEY"] = found[-1]
            if found := re.findall(r"GPU_NODE_TOKEN=(\S+)", done.stdout):
                known["GPU_NODE_TOKEN"] = found[-1]
