"""Reads the entries, and finds those that no longer fit the code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
_FIELDS = {"protection", "file", "old", "new", "tests"}


class BadEntry(Exception):
    """An entry does not fit its format or the code."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """area: the name of the entry's file. tests: pytest node ids, of which at least one must fail."""

    area: str
    protection: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutated(self, text: str) -> str:
        """The file's text without the protection. Raises BadEntry."""
        if (found := text.count(self.old)) != 1:
            raise BadEntry(f"{self.file}: 'old' must occur once, it occurs {found} times ({self.protection})")
        if self.old == self.new:
            raise BadEntry(f"{self.file}: 'old' and 'new' are the same ({self.protection})")
        return text.replace(self.old, self.new)

    def check(self, root: Path = ROOT) -> None:
        """Raises BadEntry where the file, its text or a test is not there."""
        path = root / self.file
        if not path.is_file():
            raise BadEntry(f"no file {self.file} ({self.protection})")
        self.mutated(path.read_text())
        if not self.tests:
            raise BadEntry(f"no tests are named ({self.protection})")
        for node in self.tests:
            file, *names = node.split("::")
            if not (root / file).is_file():
                raise BadEntry(f"no test file {file} ({self.protection})")
            source = (root / file).read_text()
            for name in (name.partition("[")[0] for name in names):
                if not re.search(rf"^ *(async )?(def|class) {re.escape(name)}\b", source, re.MULTILINE):
                    raise BadEntry(f"no test {node} ({self.protection})")


def areas() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(names: Sequence[str] = ()) -> Iterator[Mutation]:
    """The mutations of these areas, of all where none is named. Raises BadEntry."""
    if unknown := set(names) - set(areas()):
        raise BadEntry(f"no area {', '.join(sorted(unknown))}; there are {', '.join(areas())}")
    for area in names or areas():
        for entry in tomllib.loads((FOLDER / f"{area}.toml").read_text()).get("mutation", []):
            if set(entry) != _FIELDS:
                raise BadEntry(f"{area}.toml: an entry has the fields {sorted(_FIELDS)}, not {sorted(entry)}")
            yield Mutation(area, **{**entry, "tests": tuple(entry["tests"])})
