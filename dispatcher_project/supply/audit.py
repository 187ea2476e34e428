"""`supply audit`: looks the pinned packages up in the advisory database, with pip-audit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.bootstrap import locked


class NotAudited(Exception):
    """The advisory database did not answer, or pip-audit could not run; the message says why."""


@dataclass(frozen=True, slots=True)
class Audit:
    """vulnerabilities: one line each. asked: number of packages that the database has."""

    vulnerabilities: list[str]
    asked: int


def audit(root: Path, extras: Iterable[str] = ()) -> Audit:
    """Look up the pins of the lock, independent of this installation.

    Raises:
        NotAudited: at least one package could not be looked up.
    """
    with tempfile.TemporaryDirectory() as folder:
        pins, answer = Path(folder) / "requirements.txt", Path(folder) / "answer.json"
        pins.write_text(locked((root / "constraints.txt").read_text(), tuple(extras)))
        done = subprocess.run(
            [*_PIP_AUDIT, *_OPTIONS, f"--output={answer}", f"--requirement={pins}"],
            check=False,
            capture_output=True,
            text=True,
        )
        # exit status 1 is a vulnerability or a failure: only the former writes an answer
        if not answer.exists():
            lines = done.stderr.strip().splitlines() or [f"pip-audit ended with status {done.returncode}"]
            raise NotAudited(lines[-1][-_SHOWN_CHARACTERS:])
        packages = json.loads(answer.read_text())["dependencies"]
    # pip-audit takes the 404 of a mirror without advisories for "no known vulnerabilities"
    if unknown := [one["name"] for one in packages if "skip_reason" in one]:
        shown = ", ".join(unknown[:_SHOWN_NAMES])
        raise NotAudited(f"it knows {len(packages) - len(unknown)} of {len(packages)} packages, not {shown}")
    return Audit([_line(package, one) for package in packages for one in package["vulns"]], len(packages))


def _line(package: dict[str, Any], advisory: dict[str, Any]) -> str:
    fixed_in = ", ".join(advisory["fix_versions"]) or "no release"
    return f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed_in}"


_PIP_AUDIT = (sys.executable, "-m", "pip_audit")
_OPTIONS = ("--disable-pip", "--require-hashes", "--progress-spinner=off", "--timeout=15", "--format=json")
_SHOWN_CHARACTERS = 300
_SHOWN_NAMES = 5
