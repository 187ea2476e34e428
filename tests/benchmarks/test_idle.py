"""The reported cost of an idle tree of processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.idle import ALL, UP, main, measure_processes, proportional_bytes
from dispatcher_project.supervisor.embedded import die_with_parent
from verification.proving.memory import resident_bytes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

_PARENT = """
import subprocess, sys
quiet = "import signal; held = bytearray(30_000_000); print(flush=True); signal.pause()"
busy = "print(flush=True)\\nwhile True: pass"
children = [subprocess.Popen([sys.executable, "-S", "-c", code]) for code in (quiet, busy)]
print(*(child.pid for child in children), flush=True)
sys.stdin.read()
for child in children:
    child.kill()
"""


@pytest.fixture
def pids() -> Iterator[dict[str, int]]:
    """As in up.json: an idle parent, a child that uses memory, one that is always busy."""
    up = subprocess.Popen(
        [sys.executable, "-S", "-c", _PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    assert up.stdout is not None
    said = [up.stdout.readline().split() for _ in range(3)]
    (children,) = [line for line in said if line]
    yield {UP: up.pid, "quiet": int(children[0]), "busy": int(children[1])}
    up.communicate()


def test_each_process_has_its_own_cost_and_the_sum_is_of_all(pids: dict[str, int]) -> None:
    found = measure_processes(pids, 1.0)
    assert list(found)[-1] == ALL
    assert found["quiet"].pss_mb > found["busy"].pss_mb + 20
    assert found["busy"].core_share > max(found["quiet"].core_share, found[UP].core_share)
    assert found[UP].core_share < 0.05, "without its children's"
    assert found[UP].pss_mb < found["quiet"].pss_mb
    for what in ("pss_mb", "rss_mb", "core_share"):
        parts = sum(getattr(cost, what) for name, cost in found.items() if name != ALL)
        assert parts == pytest.approx(getattr(found[ALL], what))
    assert 0 < proportional_bytes(pids["busy"]) < resident_bytes(pids["busy"]), "shared pages count once"


def test_a_process_that_has_exited_is_reported_and_not_measured(pids: dict[str, int]) -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    with pytest.raises(ValueError, match=rf"web \({gone.pid}\) has ended"):
        measure_processes({**pids, "web": gone.pid}, 0.0)


def test_a_folder_without_an_up_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"idle: no `up` is ready on {tmp_path}\n"
