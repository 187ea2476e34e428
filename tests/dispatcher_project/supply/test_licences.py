from __future__ import annotations

import re

import pytest

from dispatcher_project.supervisor.bootstrap import ROOT
from dispatcher_project.supply import sbom
from dispatcher_project.supply.lock import Pin, read_lock
from dispatcher_project.supply.main import main
from dispatcher_project.supply.sbom import expression_of, is_allowed, read_licences


def test_every_package_of_the_lock_has_an_allowed_licence() -> None:
    found = read_licences(read_lock(ROOT / "constraints.txt").values())
    assert {one.pin.name: one.expression for one in found if not one.is_allowed} == {}
    missing = [one.pin for one in found if one.expression is None]
    assert [pin.name for pin in missing if not pin.marker] == [], (
        "not installed: run `python3 manage.py test`"
    )


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("Apache-2.0 AND BSD-3-Clause", True),
        ("AGPL-3.0-or-later", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("unknown", False),
        ("(MIT OR GPL-3.0-only)", False),
    ],
)
def test_one_alternative_is_enough_and_an_unlisted_licence_is_refused(expression: str, allowed: bool) -> None:
    assert is_allowed(expression) is allowed


@pytest.mark.parametrize(
    ("expression", "text", "classifiers", "expected"),
    [
        ("MIT", "GPL", ["License :: OSI Approved :: BSD License"], "MIT"),
        (None, "BSD 3-Clause OR Apache-2.0", [], "BSD-3-Clause OR Apache-2.0"),
        (None, "Dual", ["License :: OSI Approved :: BSD License", "License :: OSI Approved :: MIT License"],
         "LicenseRef-BSD AND MIT"),
        (None, "see LICENSE", ["License :: OSI Approved", "License :: DFSG approved"], "unknown"),
        (None, None, ["License :: OSI Approved :: GNU General Public License v3 (GPLv3)"],
         "GNU General Public License v3 (GPLv3)"),
        (None, None, [], "unknown"),
    ],
)  # fmt: skip
def test_a_licence_is_read_from_whatever_names_it(
    expression: str | None, text: str | None, classifiers: list[str], expected: str
) -> None:
    assert expression_of(expression, text, classifiers) == expected


def test_the_command_fails_for_a_licence_that_is_not_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["licences"]) == 0
    assert "django 5.2" in capsys.readouterr().out
    monkeypatch.setattr(sbom, "_installed", lambda name: "AGPL-3.0-only" if name == "django" else "MIT")
    assert main(["licences"]) == 1
    assert re.search(r"AGPL-3.0-only +NOT ALLOWED", capsys.readouterr().out)


def test_a_package_that_is_not_installed_here_is_not_judged() -> None:
    (found,) = read_licences([Pin("no-such-package", "1")])
    assert found.expression is None
    assert found.is_allowed
