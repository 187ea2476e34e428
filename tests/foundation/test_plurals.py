from __future__ import annotations

from foundation.texts import counted


def test_one_is_singular_and_all_other_numbers_are_plural() -> None:
    assert [counted(number, "slot") for number in (0, 1, 2)] == ["0 slots", "1 slot", "2 slots"]
    assert [counted(number, "try", "tries") for number in (1, 2)] == ["1 try", "2 tries"]
