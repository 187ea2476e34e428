from __future__ import annotations

from foundation.ids import ID_LENGTH, new_id


def test_ids_are_unique_and_sort_by_time():
    early, late = new_id(1_700_000_000.0), new_id(1_700_000_000.001)
    assert early < late
    assert len(early) == ID_LENGTH == 26


def test_ids_of_one_millisecond_sort_by_creation():
    ids = [new_id(1_700_000_000.0) for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000
