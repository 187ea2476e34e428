"""The licences of the lock's packages (`supply licences`), and their bill of materials (`supply sbom`)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .lock import Pin, dependencies, read_lock

ALLOWED = frozenset({
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "LGPL-3.0-only", "LicenseRef-BSD", "MIT",
    "MIT-0", "MPL-2.0", "PSF-2.0",
})  # fmt: skip
"""Permissive licences, and those that bind the package alone (LGPL: psycopg, imported unchanged)."""

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
    """expression: SPDX; `unknown` if the package names none, None if it is not installed here."""

    pin: Pin
    expression: str | None

    @property
    def is_allowed(self) -> bool:
        return self.expression is None or is_allowed(self.expression)


def read_licences(pins: Iterable[Pin]) -> list[Licence]:
    """The licences, from the metadata of the installed packages."""
    return [Licence(pin, _installed(pin.name)) for pin in pins]


def is_allowed(expression: str) -> bool:
    """Return True if an alternative (OR) has only allowed licences (AND)."""
    alternatives = re.split(r" OR ", expression)
    return any(all(part in ALLOWED for part in one.split(" AND ")) for one in alternatives)


def expression_of(expression: str | None, text: str | None, classifiers: Iterable[str]) -> str:
    """The SPDX expression of a package's metadata.

    Args:
        expression: the metadata's `License-Expression`.
        text: the metadata's `License`, a name or the whole text.
        classifiers: trove classifiers; several licences count as applying together.
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


def make_sbom(root: Path, extras: Iterable[str] = ()) -> str:
    """CycloneDX 1.6 as JSON, of an installation with these extras, independent of this installation."""
    chosen = set(extras)
    pins = [
        pin for pin in read_lock(root / "constraints.txt").values() if not pin.extras or pin.extras & chosen
    ]
    components = {one.pin.name: _component(one) for one in read_licences(pins)}
    bom = Bom(components=components.values())
    bom.serial_number = uuid5(NAMESPACE_URL, "\n".join(f"{pin} {pin.hashes}" for pin in pins))
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    product = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        bom_ref=project["name"],
    )
    bom.metadata.component = product
    bom.register_dependency(product, _named(dependencies(root, sorted(chosen)), components))
    for name, component in components.items():
        bom.register_dependency(component, _named(_requires(name), components))
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _component(licence: Licence) -> Component:
    pin = licence.pin
    url = PackageURL("pypi", name=pin.name, version=pin.version)
    named = licence.expression not in (None, UNKNOWN)
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        licenses=[LicenseFactory().make_from_string(str(licence.expression))] if named else None,
        external_references=[_files(pin, url)],
    )


def _files(pin: Pin, url: PackageURL) -> ExternalReference:
    """The files of a release, one per platform."""
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=one.partition(":")[2]) for one in pin.hashes]
    return ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(url)),
        comment="the files of this release that constraints.txt accepts",
        hashes=hashes,
    )


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def _named(requirements: Iterable[str], components: Mapping[str, Component]) -> list[Component]:
    """The required packages that are in the lock: those of unused extras are not."""
    found = {canonicalize_name(Requirement(text).name) for text in requirements if "extra ==" not in text}
    return [components[name] for name in sorted(found) if name in components]
