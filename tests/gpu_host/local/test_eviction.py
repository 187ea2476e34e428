"""Which models are unloaded for which."""

from __future__ import annotations

import dataclasses

import pytest

from gpu_host.local.eviction import (
    Load,
    NoRoom,
    Replace,
    Room,
    Unload,
    WaitForRuns,
    Warm,
    decayed_use,
    idle_models,
    is_leaking,
    make_room,
    ready,
)

ROOM = Room(limit=1000)
NOW = 10_000.0


def warm(name: str, reserved: float, **values) -> Warm:
    return dataclasses.replace(Warm(name, reserved, load_seconds=10, last_used=NOW), **values)


def test_a_model_that_fits_evicts_no_other():
    assert make_room("c", 400, [warm("a", 300), warm("b", 300)], ROOM, NOW) == Load()


def test_the_model_that_is_cheap_to_reload_is_evicted():
    ones = [warm("dear", 500, load_seconds=60), warm("cheap", 500, load_seconds=2)]
    assert make_room("c", 400, ones, ROOM, NOW) == Load(("cheap",))


def test_the_model_that_is_rarely_used_is_evicted():
    ones = [
        warm("often", 500, use_score=50.0),
        warm("seldom", 500, use_score=2.0),
    ]
    assert make_room("c", 400, ones, ROOM, NOW) == Load(("seldom",))
    old = dataclasses.replace(ones[0], last_used=NOW - 36_000)
    assert make_room("c", 400, [old, ones[1]], ROOM, NOW) == Load(("often",))


def test_a_small_model_stays_if_evicting_a_larger_one_is_enough():
    ones = [warm("small", 100, use_score=1.0), warm("large", 800, use_score=2.0)]
    assert make_room("c", 700, ones, ROOM, NOW) == Load(("large",))


def test_a_running_model_is_never_evicted():
    assert make_room("c", 400, [warm("a", 700, running=1)], ROOM, NOW) == WaitForRuns()


def test_a_resident_model_is_evicted_last():
    ones = [warm("resident", 500, min_resident=True, use_score=0.0), warm("other", 500, use_score=99.0)]
    assert make_room("c", 400, ones, ROOM, NOW) == Load(("other",))
    assert make_room("c", 900, ones, ROOM, NOW) == Load(("other", "resident"))


def test_a_model_that_can_never_fit_is_permanently_refused():
    verdict = make_room("c", 990, [], dataclasses.replace(ROOM, base=50), NOW)
    assert isinstance(verdict, NoRoom)
    assert verdict.permanent
    assert "needs 990 MB" in verdict.why
    assert "950 MB" in verdict.why


def test_memory_of_other_processes_is_reported_in_the_refusal():
    verdict = make_room("c", 400, [warm("a", 100)], Room(limit=1000, others=700), NOW)
    assert isinstance(verdict, NoRoom)
    assert not verdict.permanent
    assert "700 MB" in verdict.why


def test_excess_memory_of_our_process_is_not_attributed_to_others():
    room = Room(limit=1000, own=900, base=50)
    assert make_room("c", 400, [warm("a", 300, running=1)], room, NOW) == WaitForRuns()
    assert make_room("c", 600, [warm("a", 300)], room, NOW) == Unload(("a",))
    verdict = make_room("c", 600, [], room, NOW)
    assert isinstance(verdict, Replace)
    assert "850 MB" in verdict.why


def test_a_process_that_is_as_good_as_new_is_not_replaced_for_ever():
    assert make_room("c", 940, [], Room(limit=1000, own=70, base=50), NOW) == Load()


def test_memory_beyond_the_reservation_is_not_given_twice():
    assert make_room("c", 400, [warm("a", 300)], Room(limit=1000, own=800), NOW) == Load(("a",))


def test_memory_of_a_model_counted_as_others_counts_once():
    ollama = warm("ollama", 500, counted_as_others=True)
    room = Room(limit=1000, others=500, own=50, base=50)
    assert make_room("c", 400, [ollama], room, NOW) == Load()
    assert make_room("c", 800, [ollama], room, NOW) == Unload(("ollama",)), "and then it is looked again"
    busy = dataclasses.replace(ollama, running=1)
    assert make_room("c", 800, [busy], room, NOW) == WaitForRuns()
    strangers = dataclasses.replace(room, others=800)
    assert isinstance(make_room("c", 800, [ollama], strangers, NOW), NoRoom)
    both = dataclasses.replace(room, own=300)
    assert make_room("c", 250, [ollama, warm("a", 100, use_score=0.1)], both, NOW) == Load(("a",))


def test_an_unmeasured_model_is_loaded_alone():
    assert make_room("c", None, [warm("a", 1)], ROOM, NOW) == Load(("a",))
    assert make_room("c", None, [warm("a", 1, running=1)], ROOM, NOW) == WaitForRuns()


def test_idle_models_are_unloaded_after_their_time():
    ones = [
        warm("idle", 1, last_used=NOW - 300),
        warm("young", 1, last_used=NOW - 299),
        warm("busy", 1, last_used=NOW - 900, running=1),
        warm("resident", 1, last_used=NOW - 900, min_resident=True),
    ]
    assert idle_models(ones, NOW) == ["idle"]


def test_ready_lists_models_without_a_load_most_recently_used_first():
    ones = [
        warm("old", 1, last_used=NOW - 9),
        warm("full", 1, running=1),
        warm("taken", 1),
        warm("twice", 1, running=1, last_used=NOW - 5),
    ]
    at_once = {"old": 1, "full": 1, "taken": 1, "twice": 2}
    assert ready(ones, ["taken"], at_once) == ["twice", "old"]
    assert ready(ones, ["twice"], at_once) == ["taken", "old"]
    assert ready([], [], at_once) == []


def test_during_a_load_the_model_is_ready_and_evictable_ones_are_not():
    ones = [warm("idle", 1), warm("runs", 1, running=1)]
    at_once = {"idle": 1, "runs": 2, "comes": 2, "alone": 1}
    assert ready(ones, ["comes"], at_once) == ["runs", "comes"]
    assert ready(ones, ["comes", "comes", "alone", "unknown"], at_once) == ["runs"]


def test_the_use_score_decays():
    assert decayed_use(4.0, 0) == 4.0
    assert 1.0 < decayed_use(4.0, 600) < 2.0


@pytest.mark.parametrize(
    ("after_runs", "spare", "leaks"),
    [
        ([100, 200], 1, False),
        ([100, 101, 100, 102], 10, False),
        ([100, 200, 300, 400], 250, True),
        ([100, 200, 300, 400], 5000, False),
        ([100, 400, 800, 1500], 4000, True),
    ],
)
def test_a_leak_is_seen_before_it_hurts(after_runs, spare, leaks):
    assert is_leaking(after_runs, spare, least=64) is leaks
