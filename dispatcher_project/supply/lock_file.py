"""Reads constraints.txt: each package's version, marker and hashes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import Marker

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
        marker: where it is installed, without the extras; "" for everywhere.
        extras: of which it is a part; empty for what every installation has.
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
    """Whether any supported Python and platform fulfils the marker, and whether all do."""
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
"""What markers are evaluated against, from the first to the last patch of each supported Python."""
