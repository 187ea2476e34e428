"""Runs mutations: applies each to a copy of the checkout and expects one of its tests to fail.

    python3 -m tests.mutations [area …]

Exit status 0: every mutation was caught."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutations.entries import ROOT, BadEntry, Mutation, read

SECONDS = 300
"""For the tests of one mutation."""
FAILED = 1
"""Pytest's exit status where tests failed; also that of some errors before any test."""
_FAILURE = re.compile(r"\b\d+ failed\b|^_+ ERROR at teardown of ", re.MULTILINE)
"""A fixture may judge at its end what the test did; errors before a test are no judgement."""


@contextmanager
def copied_checkout() -> Iterator[Path]:
    """The tracked and the new files of the checkout, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                target = Path(folder) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        yield Path(folder)


def run_tests(mutation: Mutation, root: Path) -> tuple[int, str]:
    """Pytest's exit status, and its output."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *mutation.tests]
    environment = {**os.environ, "DISPATCHER_TEST_DATABASE_URL": "", "PYTHONPATH": str(root)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)  # the copy's own pyproject.toml names it
    try:
        ended = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return FAILED, f"1 failed: {error}"
    return ended.returncode, ended.stdout


def is_caught(mutation: Mutation, root: Path) -> bool:
    """Run one mutation in the copy, which is restored afterwards. Raises BadEntry."""
    path = root / mutation.file
    original = path.read_text()
    path.write_text(mutation.mutated(original))
    began = time.monotonic()
    try:
        status, output = run_tests(mutation, root)
    finally:
        path.write_text(original)
    caught = status == FAILED and _FAILURE.search(output) is not None
    verdict = "caught" if caught else "MISSED" if status == 0 else f"BROKEN (pytest exit status {status})"
    seconds = time.monotonic() - began
    print(f"{verdict:<7} {seconds:5.1f} s  {mutation.area}: {mutation.protection}", flush=True)
    if not caught and status:
        print(output[-3000:])
    return caught


def main(names: list[str]) -> int:
    try:
        mutations = list(read(names))
        for mutation in mutations:
            mutation.check()
    except BadEntry as error:
        print(error, file=sys.stderr)
        return 2
    with copied_checkout() as root:
        missed = sum(not is_caught(mutation, root) for mutation in mutations)
    print(f"{len(mutations) - missed} of {len(mutations)} mutations were caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
