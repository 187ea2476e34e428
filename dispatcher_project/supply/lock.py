"""`supply lock`: writes constraints.txt anew from pyproject.toml, with uv."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from dispatcher_project.supervisor.bootstrap import locked

from .lock_file import PLATFORMS, PYTHONS, Pin, is_supported, read_pins
from .project import extras as extras_of

HEAD = """\
# The one lock (docs/adr/0002, 0040): each package with the hashes of all files of its release.
# After a change of dependencies in pyproject.toml, or a merge conflict here:  python3 manage.py supply lock
# To upgrade everything, or some packages:           python3 manage.py supply lock --upgrade [NAME ...]
# By hand:  pip install --require-hashes --no-deps --only-binary :all: -r constraints.txt
"""


class LockError(Exception):
    """There is no lock for these dependencies; the message says why."""


def refresh(root: Path, *, upgrade: Sequence[str] | None = None) -> list[str]:
    """Writes constraints.txt; what it pins already stays, except what is upgraded.

    Args:
        upgrade: names of packages; [] for all of them, None for none.

    Returns:
        What changed, one line for each package.

    Raises:
        LockError: uv is not there, finds no versions, or a platform would have to build a package.
    """
    path = root / "constraints.txt"
    before: dict[str, str] = {
        canonicalize_name(pin.name): pin.version for pin in read_pins(_without_conflict(path.read_text()))
    }
    pins = list(_resolve(root, before, upgrade))
    text = HEAD + "".join(_entry(pin) for pin in pins)
    _check_wheels(text, extras_of(root))
    path.write_text(text)
    after = {pin.name: pin.version for pin in pins}
    return [
        f"{name} {before.get(name, '(new)')} -> {after.get(name, '(gone)')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _resolve(root: Path, before: Mapping[str, str], upgrade: Sequence[str] | None) -> Iterator[Pin]:
    """Which extras a package belongs to: those without which it would not be here."""
    options = ["--upgrade"] if upgrade == [] else [f"--upgrade-package={name}" for name in upgrade or ()]
    extras = extras_of(root)
    everything = list(_compile(root, extras, before, (*options, "--generate-hashes")))
    versions = {pin.name: pin.version for pin in everything}
    always = {pin.name for pin in _compile(root, (), versions)}
    of_extra = {extra: {pin.name for pin in _compile(root, (extra,), versions)} for extra in extras}
    for pin in everything:
        somewhere, everywhere = is_supported(pin.marker) if pin.marker else (True, True)
        if somewhere:
            named = frozenset(extra for extra in extras if pin.name in of_extra[extra])
            yield replace(
                pin,
                marker="" if everywhere else pin.marker,
                extras=frozenset() if pin.name in always else named,
            )


def _compile(
    root: Path, extras: Iterable[str], versions: Mapping[str, str], options: Iterable[str] = ()
) -> Iterator[Pin]:
    """The versions stay where they may: uv takes them from the file that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "requirements.txt"
        output.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        chosen = (f"--extra={extra}" for extra in extras)
        _uv(
            root / "pyproject.toml",
            "--universal",
            f"--python-version={PYTHONS[0]}",
            *chosen,
            *options,
            f"-o={output}",
        )
        yield from read_pins(output.read_text())


def _check_wheels(text: str, extras: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(locked(text, extras))
        for version in PYTHONS:
            for platform in PLATFORMS:
                where = (f"--python-platform={platform}", f"--python-version={version}")
                _uv(file, "--no-deps", "--only-binary=:all:", *where)


def _uv(source: Path, *options: str) -> None:
    command = [_find_uv(), "pip", "compile", str(source), "--quiet", "--no-header", "--no-annotate", *options]
    done = subprocess.run(command, cwd=source.parent, check=False, capture_output=True, text=True)
    if done.returncode:
        raise LockError(f"{' '.join(options)}\n{done.stderr.strip()}")


def _find_uv() -> str:
    """The environment's own, then the machine's."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise LockError("uv is not installed (pip install uv)")
    return found


def _entry(pin: Pin) -> str:
    return " \\\n    ".join([str(pin), *(f"--hash={one}" for one in sorted(pin.hashes))]) + "\n"


def _without_conflict(text: str) -> str:
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith(("<<<<", "====", ">>>>"))
    )
