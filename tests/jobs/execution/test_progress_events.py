"""What a run says of itself, on its way to the events: how often, how much, and never in the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpus.runners.base import Accepted
from jobs.execution import claiming, progress_events
from jobs.execution.progress_events import ProgressEvents
from jobs.execution.run_inputs import make_run
from jobs.models import Job
from tests.builders import ManualClock
from tests.jobs.execution.by_hand import by_hand
from tests.jobs.execution.shop import Shop


class Desk:
    def __init__(self, **limits: int) -> None:
        self.clock, self.open = ManualClock(), True
        self.written: list[tuple[float, str, Mapping[str, Any]]] = []
        self.news = ProgressEvents(
            lambda kind, data: self.written.append((self.clock.elapsed, kind, data)),
            self.clock,
            rest_seconds=0.5,
            may_write=lambda: self.open,
            **limits,
        )

    def say(self, *words: Any, every: float = 0.0) -> None:
        for word in words:
            self.clock.move(every)
            self.news.add("partial", word)

    @property
    def output(self) -> list[Any]:
        return [piece for _, kind, data in self.written if kind == "partial" for piece in data["output"]]


def test_words_are_put_together_and_written_now_and_then() -> None:
    desk = Desk()
    desk.say(*["word "] * 24, every=0.125)
    desk.news.end()
    assert "".join(desk.output) == "word " * 24
    assert [round(at, 1) for at, _, _ in desk.written] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [data["part"] for _, _, data in desk.written] == [1, 2, 3, 4, 5, 6]


def test_a_long_run_writes_ever_less_often() -> None:
    desk = Desk()
    desk.say(*["w"] * 36_000, every=0.1)
    assert 100 < len(desk.written) < 160, "an hour"


def test_a_run_that_is_over_at_once_writes_nothing() -> None:
    desk = Desk()
    desk.say("all", " of", " it")
    desk.news.end()
    assert desk.written == []


def test_what_was_said_last_does_not_wait_for_the_next_word() -> None:
    desk = Desk()
    desk.say("hello")
    desk.clock.move(1.0)
    desk.news.write_if_due()
    desk.news.write_if_due()
    assert desk.output == ["hello"]


def test_pieces_that_are_no_text_stay_pieces() -> None:
    desk = Desk()
    desk.say({"reasoning": "hm"}, {"reasoning": ", yes"}, "So", " it is", {"preview": [1]}, [2], None)
    desk.clock.move(1.0)
    desk.news.write_if_due()
    assert desk.output == [{"reasoning": "hm, yes"}, "So it is", {"preview": [1]}, [2], None]


def test_what_is_too_much_is_left_out_and_counted() -> None:
    desk = Desk()
    desk.say("x" * 40_000, "y" * 40_000, "z")
    desk.clock.move(1.0)
    desk.news.write_if_due()
    (_, _, data) = desk.written[0]
    assert data["left_out"] == 1
    assert data["output"] == ["x" * 40_000 + "z"]
    desk.say(*["w" * 60_000] * 30, every=1.0)
    assert sum(len(piece) for piece in desk.output) <= progress_events.MAX_OUTPUT_CHARS


def test_what_an_attempt_may_tell_is_all_that_it_tells() -> None:
    desk = Desk(allowance=1000)
    desk.say(*["w" * 98] * 30, every=1.0)
    assert len("".join(desk.output)) == 980, "each piece with its quotes"
    assert sum(data.get("left_out", 0) for _, _, data in desk.written) == 20


@pytest.mark.sqlite_only
@pytest.mark.django_db(transaction=True)
def test_who_runs_a_job_after_others_may_tell_less(shop: Shop) -> None:
    hands = by_hand(shop, Accepted("r1"))
    job = hands.submit()
    Job.objects.filter(id=job.id).update(attempts_made=3)
    claimed = claiming.claim_next(hands.worker, "main", "m", None)
    assert claimed is not None
    run = make_run(hands.worker, claimed)
    assert run.progress_events is not None
    assert run.progress_events.allowance == progress_events.MAX_OUTPUT_CHARS // 4


@pytest.mark.parametrize("bad", ["nul\0", "half \ud800", {1, 2}, float("nan")])
def test_what_no_database_takes_is_left_out_and_the_run_goes_on(bad: Any) -> None:
    desk = Desk()
    desk.say("good", bad)
    desk.clock.move(1.0)
    desk.news.write_if_due()
    assert desk.output == ["good"]
    assert desk.written[0][2]["left_out"] == 1


def test_progress_is_written_where_it_moved() -> None:
    desk = Desk()
    for progress in (0.1, 0.2, 0.2001, 0.2002, 0.9):
        desk.clock.move(1.0)
        desk.news.add("progress", progress)
    assert [data["progress"] for _, kind, data in desk.written if kind == "progress"] == [0.1, 0.2, 0.9]


def test_a_database_that_does_not_keep_up_is_told_later() -> None:
    desk = Desk()
    desk.open = False
    desk.say("a", "b", every=1.0)
    assert desk.written == []
    desk.open = True
    desk.news.write_if_due()
    assert desk.output == ["ab"]


def test_nothing_that_is_told_stops_the_run() -> None:
    desk = Desk()
    desk.news.add("progress", "much")
    desk.news.add("unheard of", object())
    assert desk.written == []
