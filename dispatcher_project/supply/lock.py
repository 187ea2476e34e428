"""Reads constraints.txt (version, marker, hashes of each package); `supply lock` writes it, with uv."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from dispatcher_project.supervisor.bootstrap import locked

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "x86_64-manylinux_2_28": ("linux", "x86_64"),
    "aarch64-manylinux_2_28": ("linux", "aarch64"),
    "aarch64-apple-darwin": ("darwin", "arm64"),
}
"""Name of the platform for uv: (sys_platform, platform_machine)."""

_ENTRY = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+?))?"
    r"(?P<hashes>(?: \\\n +--hash=\S+)*)$",
    re.MULTILINE,
)
_EXTRA = re.compile(r"extra == '([\w-]+)'")


@dataclass(frozen=True, slots=True)
class Pin:
    """A package of the lock.

    Args:
        name: normalized.
        marker: environment marker without the extras; "" for every environment.
        extras: extras that it belongs to; empty if every installation has it.
        hashes: of all files of the release, as `sha256:…`.
    """

    name: str
    version: str
    marker: str = ""
    extras: frozenset[str] = field(default_factory=frozenset)
    hashes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The requirement without hashes."""
        wanted = " or ".join(f"extra == '{extra}'" for extra in sorted(self.extras))
        both = f"({self.marker}) and ({wanted})"
        where = both if self.marker and wanted else self.marker or wanted
        return f"{self.name}=={self.version}" + (f" ; {where}" if where else "")


def read_pins(text: str) -> Iterator[Pin]:
    """The entries of a requirements file, as uv or `supply lock` writes them."""
    for found in _ENTRY.finditer(text):
        marker = found["marker"] or ""
        extras = frozenset(_EXTRA.findall(marker))
        if extras:
            outer = re.fullmatch(r"\((.+)\) and \(extra == .*\)", marker)
            marker = outer[1] if outer else ""
        hashes = tuple(re.findall(r"--hash=(\S+)", found["hashes"]))
        yield Pin(found["name"], found["version"], marker, extras, hashes)


def read_lock(path: Path) -> dict[str, Pin]:
    return {pin.name: pin for pin in read_pins(path.read_text())}


def is_supported(marker: str) -> tuple[bool, bool]:
    """Return whether any, and whether every, supported Python and platform meets the marker."""
    fulfilled = [Marker(marker).evaluate(dict(one)) for one in ENVIRONMENTS]
    return any(fulfilled), all(fulfilled)


ENVIRONMENTS = [
    {
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "python_version": version,
        "python_full_version": f"{version}.{patch}",
        "sys_platform": platform,
        "platform_system": platform.capitalize(),
        "platform_machine": machine,
        "extra": "",
    }
    for version in PYTHONS
    for patch in (0, 99)
    for platform, machine in PLATFORMS.values()
]
"""The environments that markers are evaluated for: the first and last patch of each supported Python."""


def dependencies(root: Path, extras: Iterable[str] = ()) -> list[str]:
    """The requirements of pyproject.toml, with those of the extras."""
    project = _project(root)
    optional = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(text for extra in extras for text in optional[extra])]


def extras_of(root: Path) -> tuple[str, ...]:
    """The names of all extras, sorted."""
    return tuple(sorted(_project(root).get("optional-dependencies", {})))


def _project(root: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return project


HEAD = """\
# The one lock (docs/adr/0002, 0040): each package with the hashes of all files of its release.
# After a change of dependencies in pyproject.toml, or a merge conflict here:  python3 manage.py supply lock
# To upgrade everything, or some packages:           python3 manage.py supply lock --upgrade [NAME ...]
# By hand:  pip install --require-hashes --no-deps --only-binary :all: -r constraints.txt
"""


class LockError(Exception):
    """The dependencies can't be locked; the message says why."""


def refresh(root: Path, *, upgrade: Sequence[str] | None = None) -> list[str]:
    """Write constraints.txt. Pinned versions stay, except those to upgrade.

    Args:
        upgrade: names of packages; [] for all of them, None for none.

    Returns:
        One line per changed package.

    Raises:
        LockError: uv is missing or finds no versions, or a platform has no wheel of a package.
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
    """Yield the pins, each with the extras that need it."""
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
    """Resolve with uv, which prefers the versions in the file that it overwrites."""
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
    """The uv of this environment, else of the machine."""
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
