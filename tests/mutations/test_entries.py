"""Each entry fits the current code; running it shows that its tests fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.__main__ import is_caught
from tests.mutations.entries import BadEntry, Mutation, areas, read


@pytest.mark.parametrize("area", areas())
def test_every_entry_fits_the_code(area: str) -> None:
    mutations = list(read([area]))
    assert mutations
    for mutation in mutations:
        mutation.check()


def test_an_unknown_area_is_named() -> None:
    with pytest.raises(BadEntry, match="nowhere"):
        list(read(["nowhere"]))


@pytest.fixture
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing those of the gate takes most of the CPU time of a run of two small tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def make_checkout(root: Path, tests: tuple[str, ...]) -> Mutation:
    (root / "product.py").write_text("def double(number):\n    return number * 2\n")
    (root / "test_product.py").write_text(
        "from product import double\n\n"
        "def test_doubles():\n    assert double(3) == 6\n\n"
        "def test_zero():\n    assert double(0) == 0\n"
    )
    return Mutation("here", "Numbers are doubled.", "product.py", "number * 2", "number", tests)


@pytest.mark.usefixtures("no_plugins")
def test_a_mutation_is_caught_where_a_test_fails(tmp_path: Path) -> None:
    mutation = make_checkout(tmp_path, ("test_product.py::test_doubles",))
    assert is_caught(mutation, tmp_path)
    assert "number * 2" in (tmp_path / "product.py").read_text(), "the copy is put right again"


@pytest.mark.usefixtures("no_plugins")
def test_a_mutation_is_missed_where_all_tests_pass(tmp_path: Path) -> None:
    assert not is_caught(make_checkout(tmp_path, ("test_product.py::test_zero",)), tmp_path)


@pytest.mark.usefixtures("no_plugins")
def test_a_missing_test_catches_no_mutation(tmp_path: Path) -> None:
    mutation = make_checkout(tmp_path, ("test_product.py::test_gone",))
    assert not is_caught(mutation, tmp_path)
    with pytest.raises(BadEntry, match="test_gone"):
        mutation.check(tmp_path)


def test_an_entry_without_its_text_is_refused(tmp_path: Path) -> None:
    mutation = make_checkout(tmp_path, ("test_product.py::test_doubles",))
    (tmp_path / "product.py").write_text("")
    with pytest.raises(BadEntry, match="occurs 0 times"):
        mutation.check(tmp_path)
