"""Creates the virtual environment. Standard library only.

constraints.txt is the lock file (docs/adr/0002, 0040): uv or pip installs its pins, with their hashes, wheels
only; one pip per core, because most of pip's time goes into the index pages. If the chosen extras pin uv
itself (`test`), pip installs uv and uv the rest: 8 CPU seconds instead of 26. A stamp file in the environment
identifies the installed lock; while it matches, the environment is used as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OFF_SWITCH = "DISPATCHER_NO_BOOTSTRAP"
LOCKED = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
"""Options of pip and uv: only files with the lock's hashes, and no build code of packages."""
_STAMP = "dispatcher-stamp.json"
_SHOWN_LINES = 12
_MAX_PIPS = 4
_UV_INSTALL = ("pip", "install", "--quiet", "--python")
_UV_PIN = re.compile(r"^uv==(?!.*extra ==)", re.M)
_UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
"""What pip's configuration calls the places of packages: uv reads no pip.conf."""
_PIP_WITH_PYTHON_OPTION = (22, 3)
_WRONG_HASH = re.compile(r"(?:DO NOT MATCH THE HASHES|Hash mismatch for)[^=]*?([\w.-]+==[\w.+!-]+)")


class BootstrapError(Exception):
    """The environment could not be created; the message has the remedy."""


def environment_python(*, extras: tuple[str, ...] = (), root: Path = ROOT) -> Path | None:
    """Return the environment's Python, after creating or updating the environment; None if it is already
    running.

    Not called under DISPATCHER_NO_BOOTSTRAP=1, which asserts that the running Python has all packages.
    """
    folder = root / ".venv"
    python = folder / "bin" / "python"
    try:
        if not is_current(folder, extras=extras, root=root):
            with _alone(root):
                if not is_current(folder, extras=extras, root=root):  # another process may have done it
                    _fill(folder, extras=extras, root=root)
    except OSError as error:
        raise BootstrapError(f"cannot use {folder}: {error}") from None
    return None if Path(sys.prefix).resolve() == folder.resolve() else python


def keep_bytecode(root: Path = ROOT) -> None:
    """Under PYTHONDONTWRITEBYTECODE write bytecode into the environment instead of beside the sources, for
    this process and its children: without any, each process compiles all its imports, which takes a second or
    more."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(root / ".venv" / "bytecode"))
        sys.dont_write_bytecode = False


def locked(text: str, extras: tuple[str, ...]) -> str:
    """Return the lock with the packages of these extras enabled, which its markers exclude otherwise."""
    for extra in extras:
        text = text.replace(f"extra == '{extra}'", "python_version >= '3'")
    return text


def is_current(folder: Path, *, extras: tuple[str, ...], root: Path) -> bool:
    """Return True if the environment has the current pins, with at least these extras."""
    stamp = _read_stamp(folder)
    return (
        (folder / "bin" / "python").exists()
        and bool(_minor_version(folder))
        and stamp.get("fingerprint") == fingerprint(root)
        and set(extras) <= set(stamp.get("extras", []))
    )


def fingerprint(root: Path) -> str:
    """Return a hash of the dependencies, the pins and the minor version of Python."""
    digest = hashlib.sha256(f"{sys.implementation.name} {sys.version_info[:2]}".encode())
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        wanted = [project["dependencies"], project.get("optional-dependencies", {})]
        digest.update(json.dumps(wanted, sort_keys=True).encode())
        digest.update((root / "constraints.txt").read_bytes())
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise BootstrapError(f"pyproject.toml or constraints.txt cannot be read: {error}") from None
    return digest.hexdigest()


def _fill(folder: Path, *, extras: tuple[str, ...], root: Path) -> None:
    stamp = _read_stamp(folder)
    extras = tuple(sorted({*extras, *stamp.get("extras", [])}))  # earlier extras stay installed
    python = folder / "bin" / "python"
    _say(f"preparing {folder} (once)")
    if not python.exists() or _minor_version(folder) != sys.version_info[:2]:
        venv.EnvBuilder(symlinks=True, clear=folder.exists()).create(folder)
    (folder / _STAMP).unlink(missing_ok=True)
    _install(locked((root / "constraints.txt").read_text(), extras), python, folder)
    text = json.dumps({"fingerprint": fingerprint(root), "extras": list(extras)})
    (folder / _STAMP).write_text(text)


def _install(lock: str, python: Path, folder: Path) -> None:
    """Install the lock. Raises BootstrapError."""
    command = [*_installer(python), *LOCKED, "-r"]
    pins = re.findall(r"^[^#\s](?:.*\\\n)*.*\n", lock, re.M)
    uses_uv = Path(command[0]).name == "uv"
    uv_pins = [] if uses_uv else [pin for pin in pins if _UV_PIN.match(pin)]
    if uv_pins and not _install_at_once(command, [uv_pins], folder) and python.with_name("uv").exists():
        error = _install_at_once([*_pinned_uv(command, python), *LOCKED, "-r"], [pins], folder)
        if not error:
            return
        if _WRONG_HASH.search(error):
            raise BootstrapError(_advice(error))
    pips = 1 if uses_uv else min(os.cpu_count() or 1, _MAX_PIPS, len(pins))
    parts = [pins[part::pips] for part in range(pips)]
    error = _install_at_once(command, parts, folder)
    if error and pips > 1 and not _WRONG_HASH.search(error):  # once more, one at a time
        error = _install_at_once(command, [pins], folder)
    if error:
        raise BootstrapError(_advice(error))


def _install_at_once(command: list[str], parts: list[list[str]], folder: Path) -> str:
    """Run one installer per part of the lock; return the output of those that failed."""
    running = []
    for number, pins in enumerate(parts):
        wanted = folder / ("locked.txt" if number == 0 else f"locked-{number}.txt")
        wanted.write_text("".join(pins))
        with_file = [*command, str(wanted)]
        running.append(
            subprocess.Popen(with_file, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    ended = [(installer.communicate()[0], installer.returncode) for installer in running]
    return "\n".join(text or "no output" for text, status in ended if status)


def _advice(output: str) -> str:
    if wrong := _WRONG_HASH.search(output):
        return (
            f"{wrong[1]} is not the file that constraints.txt names (another sha256) and was not installed. "
            "Check what your package index serves (PIP_INDEX_URL, UV_INDEX_URL); after a change of pins by "
            "hand, run `manage.py supply lock`."
        )
    lines = [line for line in output.splitlines() if not line.startswith("WARNING")]
    tail = "\n".join(f"    {line}" for line in lines[-_SHOWN_LINES:])
    return (
        f"installing the packages failed:\n{tail}\n"
        "  Check that this machine reaches its package index (PIP_INDEX_URL, UV_INDEX_URL), try again;\n"
        "  constraints.txt pins wheels for Python 3.11 to 3.14 on Linux (glibc 2.28, x86-64 and arm64) and\n"
        "  macOS (arm64); elsewhere install the packages yourself (pip install -r constraints.txt) and set\n"
        f"  {OFF_SWITCH}=1."
    )


def _installer(python: Path) -> list[str]:
    """The command that installs into that environment: uv, this Python's pip, or a pip of its own."""
    if uv := shutil.which("uv"):
        return [uv, *_UV_INSTALL, str(python)]
    options = ["install", "--quiet", "--no-compile", "--disable-pip-version-check", "--no-input"]
    # the running Python's pip can install into the other environment; creating another pip takes 3 s
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        if tuple(map(int, importlib.metadata.version("pip").split(".")[:2])) >= _PIP_WITH_PYTHON_OPTION:
            return [sys.executable, "-m", "pip", "--python", str(python), *options]
    own = [str(python), "-m", "pip"]
    if not _works([*own, "--version"]) and not _works([str(python), "-m", "ensurepip", "--upgrade"]):
        raise BootstrapError(
            f"{sys.executable} has neither pip nor ensurepip: install uv, or the packages python3-pip and "
            "python3-venv of your system"
        )
    return [*own, *options]


def _pinned_uv(pip: list[str], python: Path) -> list[str]:
    """The command of the environment's own uv, with the indexes that this pip is configured to ask."""
    configured = [*pip[: pip.index("install")], "config", "list"]
    found = subprocess.run(configured, check=False, capture_output=True, text=True).stdout
    places = dict[str, str]()  # of an index-url the first counts: that of the environment variables
    for name, value in re.findall(r"^[:\w]+\.([\w-]+)='(.*)'$", found, re.M):
        for place in value.split() if name in _UV_OPTIONS else ():
            places.setdefault(name if name == "index-url" else place, f"{_UV_OPTIONS[name]}={place}")
    strategy = "--index-strategy=unsafe-best-match"  # as pip, which takes a package from any of its indexes
    return [str(python.with_name("uv")), *_UV_INSTALL, str(python), strategy, *places.values()]


def _works(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _minor_version(folder: Path) -> tuple[int, ...]:
    """The version in pyvenv.cfg; () if that is missing or unreadable."""
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "pyvenv.cfg").read_text().splitlines():
            name, _, value = line.partition("=")
            if name.strip() in ("version", "version_info"):
                return tuple(int(part) for part in value.strip().split(".")[:2])
    return ()


def _read_stamp(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((folder / _STAMP).read_text()))
    return {}


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the lock of this checkout; another process waits."""
    with (root / ".venv.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting: another process prepares the environment")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    sys.stderr.write(f"manage.py: {text}\n")
