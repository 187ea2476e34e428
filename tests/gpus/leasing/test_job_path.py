"""The number of Lua files that one job uses, from submit to signed callback."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from gpus.leasing.library import FOLDER
from tests.gpus.leasing.lease_harness import WORKER, LeaseHarness

MAX_FILES = 25


def files_of(scripts: set[str]) -> set[str]:
    """The scripts and all that they include."""
    found: set[str] = set()
    left = [f"{name}.lua" for name in scripts] + ["includes/call.lua"]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            text = (FOLDER / name).read_text()
            left += [f"includes/{one}.lua" for one in re.findall(r"^-- include: (\w+)$", text, re.MULTILINE)]
    return found


def test_a_job_passes_few_lua_files(harness: LeaseHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.server()
    called, run = list[str](), harness.leases._run

    def note_and_run(script: str, **args: Any) -> Any:
        called.append(script)
        return run(script, **args)

    monkeypatch.setattr(harness.leases, "_run", note_and_run)
    harness.push("a", "b")
    lease = harness.must_claim("attempt")
    assert (
        harness.leases.granted("attempt", worker=WORKER) == lease
    )  # asked where the claim's answer was lost
    assert harness.leases.renew(WORKER, [lease], []) == []
    following = harness.release(lease, gpu_seconds=1.0, next_attempt_id="next")
    assert following is not None
    assert following.job_id == "b"
    harness.leases.confirm_ends([lease.ref])
    assert called == ["push", "claim", "granted", "renew", "release", "confirm_ends"]
    files = files_of(set(called))
    assert len(files) <= MAX_FILES, sorted(files)
    page = (ROOT / "docs/explanation/one_job.md").read_text()
    assert sorted(re.findall(r"^\| `([\w/]+\.lua)` \|", page, re.MULTILINE)) == sorted(files)


def test_every_include_is_used() -> None:
    every = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.lua")}
    assert files_of({path.stem for path in FOLDER.glob("*.lua")}) == every
