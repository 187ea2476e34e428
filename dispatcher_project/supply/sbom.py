"""`supply sbom`: the packages of the lock as a CycloneDX bill of materials."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .licences import UNKNOWN, Licence, read_licences
from .lock_file import Pin, read_lock
from .project import dependencies


def make_sbom(root: Path, extras: Iterable[str] = ()) -> str:
    """CycloneDX 1.6 as JSON: what an installation with these extras has, whatever else is installed here."""
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
    """Any of these may have been installed: a release has one file for each platform."""
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
    """Those that are in the lock; an extra of a package that nothing asked for is not."""
    found = {canonicalize_name(Requirement(text).name) for text in requirements if "extra ==" not in text}
    return [components[name] for name in sorted(found) if name in components]
