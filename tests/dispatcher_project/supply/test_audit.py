"""pip-audit itself is played by a stand-in: the gate asks no advisory database."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.supply import audit
from dispatcher_project.supply.main import main

CLEAN = {"name": "a", "version": "1.0", "vulns": []}
VULNERABLE = {"name": "b", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found"}


def answers(monkeypatch: pytest.MonkeyPatch, folder: Path, packages: list[dict[str, Any]] | None) -> None:
    code = "import sys; sys.exit('Traceback\\nConnectionError: no route')"
    if packages is not None:
        (folder / "answer.json").write_text(json.dumps({"dependencies": packages}))
        code = (
            "import shutil, sys;"
            "output = [word[9:] for word in sys.argv if word.startswith('--output=')][0];"
            f"shutil.copy({str(folder / 'answer.json')!r}, output);"
            "text = open([word[14:] for word in sys.argv if word.startswith('--requirement=')][0]).read();"
            "assert 'django==' in text and '--hash=' in text;"
            "sys.exit(1)"
        )
    monkeypatch.setattr(audit, "_PIP_AUDIT", (sys.executable, "-c", code))


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ([CLEAN], (0, "0 known vulnerabilities in 1 packages")),
        ([CLEAN, VULNERABLE], (1, "b 2.0: PYSEC-1, fixed in 2.1\n1 known vulnerabilities in 2 packages")),
        ([CLEAN, SKIPPED], (3, "can't be asked: it knows 1 of 2 packages, not c")),
        (None, (3, "can't be asked: ConnectionError: no route")),
    ],
    ids=["clean", "vulnerable", "a mirror without advisories", "unreachable"],
)
def test_no_answer_is_never_reported_as_no_vulnerability(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    packages: list[dict[str, Any]] | None,
    expected: tuple[int, str],
) -> None:
    status, line = expected
    answers(monkeypatch, tmp_path, packages)
    assert main(["audit"]) == status
    said = capsys.readouterr()
    assert line in (said.err if status == 3 else said.out)
