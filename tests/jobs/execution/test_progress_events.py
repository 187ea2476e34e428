"""Progress of a run as events: how often, how much, and without delaying the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpus.runners.base import Accepted
from jobs.execution import progress_events
from jobs.execution.progress_events import ProgressEvents
from jobs.models import Job
from tests.jobs.execution.by_hand import by_hand
from tests.support.fakes import ManualClock
from tests.support.worker_harness import WorkerHarness


class Buffer:
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


def test_output_is_joined_and_written_at_intervals() -> None:
    buffer = Buffer()
    buffer.say(*["word "] * 24, every=0.125)
    buffer.news.end()
    assert "".join(buffer.output) == "word " * 24
    assert [round(at, 1) for at, _, _ in buffer.written] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [data["part"] for _, _, data in buffer.written] == [1, 2, 3, 4, 5, 6]


SIGNED = "http://box/store/a/7/ab?expires=9&signature=SECRET&x=1"


@pytest.mark.parametrize("cut", ["?expi", "&sign", "signature=", "SEC"])
def test_a_signature_that_is_cut_by_two_events_is_left_out(cut: str) -> None:
    buffer = Buffer()
    first, _, second = SIGNED.partition(cut)
    buffer.say(first + cut, every=1.0)
    buffer.say({"reasoning": f"between: {first}{cut}"}, every=1.0)
    buffer.say(second, {"reasoning": second}, every=1.0)
    buffer.news.end()
    assert len(buffer.written) == 4
    plain = SIGNED.replace("SECRET", "…")
    assert "".join(piece for piece in buffer.output if isinstance(piece, str)) == plain
    thought = "".join(piece["reasoning"] for piece in buffer.output if isinstance(piece, dict))
    assert thought == f"between: {plain}"


def test_texts_of_many_names_are_remembered_up_to_a_bound() -> None:
    buffer = Buffer()
    buffer.say(*({f"name {number}": "?signature=SECRET"} for number in range(100)), every=1.0)
    buffer.news.end()
    assert len(buffer.output) == 100
    assert "SECRET" not in str(buffer.output)
    assert len(buffer.news._signatures) == progress_events.MAX_TEXTS


def test_a_text_is_written_with_the_number_and_when_it_alone_changes() -> None:
    buffer = Buffer()
    for said in (
        0.25,
        {"value": 0.25, "text": "step 5"},
        {"value": 0.25, "text": "step 5"},
        "bad",
        {"value": 0.5},
    ):
        buffer.clock.move(1.0)
        buffer.news.add("progress", said)
    assert [data for _, _, data in buffer.written] == [
        {"part": 1, "progress": 0.25},
        {"part": 2, "progress": 0.25, "text": "step 5"},
        {"part": 3, "progress": 0.5},
    ]


def test_a_long_run_writes_ever_less_often() -> None:
    buffer = Buffer()
    buffer.say(*["w"] * 36_000, every=0.1)
    assert 100 < len(buffer.written) < 160, "an hour"


def test_a_run_that_ends_before_its_first_write_writes_no_event() -> None:
    buffer = Buffer()
    buffer.say("all", " of", " it")
    buffer.news.end()
    assert buffer.written == []


def test_the_last_output_is_written_without_further_output() -> None:
    buffer = Buffer()
    buffer.say("hello")
    buffer.clock.move(1.0)
    buffer.news.write_if_due()
    buffer.news.write_if_due()
    assert buffer.output == ["hello"]


def test_pieces_that_are_no_text_stay_pieces() -> None:
    buffer = Buffer()
    buffer.say({"reasoning": "hm"}, {"reasoning": ", yes"}, "So", " it is", {"preview": [1]}, [2], None)
    buffer.clock.move(1.0)
    buffer.news.write_if_due()
    assert buffer.output == [{"reasoning": "hm, yes"}, "So it is", {"preview": [1]}, [2], None]


def test_output_has_no_signatures_of_urls() -> None:
    buffer = Buffer()
    url = "http://box/store/a/7/ab?expires=9&signature="
    buffer.say(f"reading {url[:-3]}", "re=SECRET ", {"image": [f"{url}SECRET"]})
    buffer.clock.move(1.0)
    buffer.news.write_if_due()
    assert buffer.output == [f"reading {url}… ", {"image": [f"{url}…"]}]


def test_excess_output_is_left_out_and_counted() -> None:
    buffer = Buffer()
    buffer.say("x" * 40_000, "y" * 40_000, "z")
    buffer.clock.move(1.0)
    buffer.news.write_if_due()
    (_, _, data) = buffer.written[0]
    assert data["left_out"] == 1
    assert data["output"] == ["x" * 40_000 + "z"]
    buffer.say(*["w" * 60_000] * 30, every=1.0)
    assert sum(len(piece) for piece in buffer.output) <= progress_events.MAX_OUTPUT_CHARS


def test_an_attempts_output_is_bounded() -> None:
    buffer = Buffer(allowance=1000)
    buffer.say(*["w" * 98] * 30, every=1.0)
    assert len("".join(buffer.output)) == 980, "each piece with its quotes"
    assert sum(data.get("left_out", 0) for _, _, data in buffer.written) == 20


@pytest.mark.django_db(transaction=True)
def test_later_tries_may_write_less_output(harness: WorkerHarness) -> None:
    hands = by_hand(harness, Accepted("r1"))
    job = hands.submit()
    Job.objects.filter(id=job.id).update(attempts_made=3)
    claimed = hands.worker.claims.claim_next("main", "m", None)
    assert claimed is not None
    run = hands.worker.loop_parts.make_run(claimed, lambda: None)
    assert run.progress_events is not None
    assert run.progress_events.allowance == progress_events.MAX_OUTPUT_CHARS // 4


@pytest.mark.parametrize("bad", ["nul\0", "half \ud800", {1, 2}, float("nan")])
def test_unstorable_output_is_left_out_and_the_run_goes_on(bad: Any) -> None:
    buffer = Buffer()
    buffer.say("good", bad)
    buffer.clock.move(1.0)
    buffer.news.write_if_due()
    assert buffer.output == ["good"]
    assert buffer.written[0][2]["left_out"] == 1


def test_progress_is_written_where_it_moved() -> None:
    buffer = Buffer()
    for progress in (0.1, 0.2, 0.2001, 0.2002, 0.9):
        buffer.clock.move(1.0)
        buffer.news.add("progress", progress)
    assert [data["progress"] for _, kind, data in buffer.written if kind == "progress"] == [0.1, 0.2, 0.9]


def test_under_backpressure_progress_is_written_later() -> None:
    buffer = Buffer()
    buffer.open = False
    buffer.say("a", "b", every=1.0)
    assert buffer.written == []
    buffer.open = True
    buffer.news.write_if_due()
    assert buffer.output == ["ab"]


def test_bad_progress_does_not_stop_the_run() -> None:
    buffer = Buffer()
    buffer.news.add("progress", "much")
    buffer.news.add("unheard of", object())
    assert buffer.written == []
