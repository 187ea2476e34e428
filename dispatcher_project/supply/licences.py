"""The licence of each package of the lock, as SPDX expressions, and which ones are allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from .lock_file import Pin

ALLOWED = frozenset({
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "LGPL-3.0-only", "LicenseRef-BSD", "MIT",
    "MIT-0", "MPL-2.0", "PSF-2.0",
})  # fmt: skip
"""Permissive ones, and those whose duties end at the package itself (LGPL: psycopg, imported unchanged)."""

UNKNOWN = "unknown"
_WORDS = {
    "apache license 2.0": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "bsd": "LicenseRef-BSD",
    "bsd license": "LicenseRef-BSD",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "psfl": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
} | {name.lower(): name for name in ALLOWED}
_NO_LICENCE = ("OSI Approved", "DFSG approved")


@dataclass(frozen=True, slots=True)
class Licence:
    """expression: SPDX, `unknown` where the package names none, None where it is not installed here."""

    pin: Pin
    expression: str | None

    @property
    def is_allowed(self) -> bool:
        return self.expression is None or is_allowed(self.expression)


def read_licences(pins: Iterable[Pin]) -> list[Licence]:
    """From the metadata of the packages that are installed."""
    return [Licence(pin, _installed(pin.name)) for pin in pins]


def is_allowed(expression: str) -> bool:
    """One of several alternatives is enough; of licences that apply together, each must be allowed."""
    alternatives = re.split(r" OR ", expression)
    return any(all(part in ALLOWED for part in one.split(" AND ")) for one in alternatives)


def expression_of(expression: str | None, text: str | None, classifiers: Iterable[str]) -> str:
    """As SPDX.

    Args:
        expression: the metadata's `License-Expression`.
        text: its `License`, a name or the whole text.
        classifiers: its trove classifiers; several licences count as applying together.
    """
    if expression:
        return expression
    first = (text or "").strip().partition("\n")[0]
    named = [_WORDS.get(word.strip().lower()) for word in re.split(r" or ", first, flags=re.IGNORECASE)]
    if all(named):
        return " OR ".join(str(one) for one in named)
    words = [one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License :: ")]
    found = {_WORDS.get(word.lower(), word) for word in words if word not in _NO_LICENCE}
    return " AND ".join(sorted(found)) or UNKNOWN


def _installed(name: str) -> str | None:
    try:
        found: Any = metadata(name)
    except PackageNotFoundError:
        return None
    return expression_of(
        found.get("License-Expression"), found.get("License"), found.get_all("Classifier") or ()
    )
