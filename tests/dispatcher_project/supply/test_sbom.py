from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("cyclonedx", reason="the extra `supply` is not installed")

from dispatcher_project.supervisor.bootstrap import ROOT
from dispatcher_project.supply.lock import read_lock
from dispatcher_project.supply.main import main
from dispatcher_project.supply.sbom import make_sbom


def test_the_bill_lists_the_locks_packages_with_hashes_licences_and_dependencies(tmp_path: Path) -> None:
    assert main(["sbom", "--output", str(tmp_path / "sbom.json")]) == 0
    bill = json.loads((tmp_path / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    pins = {name: pin for name, pin in read_lock(ROOT / "constraints.txt").items() if not pin.extras}
    assert {one["name"]: one["version"] for one in bill["components"]} == {
        name: pin.version for name, pin in pins.items()
    }
    django = next(one for one in bill["components"] if one["name"] == "django")
    hashes = {f"sha256:{one['content']}" for one in django["externalReferences"][0]["hashes"]}
    assert hashes == set(pins["django"].hashes)
    assert django["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert django["purl"] == f"pkg:pypi/django@{pins['django'].version}"
    needs = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    assert django["purl"] in needs["gpu-dispatcher"]
    assert any(ref.startswith("pkg:pypi/sqlparse@") for ref in needs[django["purl"]])


def test_an_extra_adds_its_packages_and_the_same_lock_has_the_same_number() -> None:
    without, again, with_dev = (json.loads(make_sbom(ROOT, extras)) for extras in ((), (), ("dev",)))
    names = {one["name"] for one in with_dev["components"]} - {one["name"] for one in without["components"]}
    assert "pytest" in names
    assert "pip-audit" not in names
    assert without["serialNumber"] == again["serialNumber"] != with_dev["serialNumber"]


def test_no_index_is_named() -> None:
    assert "pypi.org" not in make_sbom(ROOT, ("dev",))


def test_an_unknown_extra_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sbom", "--extra", "nonsense"])
    assert ended.value.code == 2
    assert "no such extra: nonsense; there are dev" in capsys.readouterr().err
