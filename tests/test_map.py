"""tests/MAP.md is as new as the code, and names a test for whatever has one."""

from __future__ import annotations

from tests.support.map import COVERED, PAGE, ROOT, covers, page, product_modules


def test_the_map_of_modules_and_tests_is_current() -> None:
    assert PAGE.read_text() == page(), "write it anew: .venv/bin/python -m tests.support.map"


def test_each_module_has_a_test() -> None:
    bare = [line for line in page().splitlines() if line.endswith("| — |")]
    assert bare == [], "write a test, or name the one that covers it in tests/support/map.py"


def test_each_named_cover_and_its_module_exist() -> None:
    assert [file for file in COVERED.values() if not (ROOT / file).is_file()] == []
    assert COVERED.keys() <= set(product_modules())


def test_a_module_is_covered_by_name_by_import_or_by_what_is_next_to_it() -> None:
    tests = {
        "tests/jobs/test_named.py": {"jobs.imported", "jobs.other"},
        "tests/jobs/test_alone.py": {"jobs.imported"},
    }
    uses = {"jobs.imported": {"jobs.used"}, "jobs.command": {"jobs.named"}}
    modules = ["jobs.named", "jobs.imported", "jobs.used", "jobs.command", "jobs.none"]
    assert dict(covers(modules, tests, uses)) == {
        "jobs.named": "**tests/jobs/test_named.py**",
        "jobs.imported": "tests/jobs/test_alone.py, tests/jobs/test_named.py",
        "jobs.used": "*by way of* jobs.imported: tests/jobs/test_alone.py, tests/jobs/test_named.py",
        "jobs.command": "*in front of* jobs.named: **tests/jobs/test_named.py**",
        "jobs.none": "—",
    }
