"""Jobs of the time in which a database lost commits are left out; all others are judge_records."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.proving import made
from verification.proving.records import Message, NodeLog
from verification.proving.verdict import Records, without_lost_commits

SPAN = (100.0, 102.0)


def records(*, accepted: float, ran: tuple[float, float], reported: float) -> Records:
    order = replace(made.order(job_ids=[made.JOB]), asked_at=accepted, accepted_at=accepted)
    run = replace(made.run(), started=ran[0], ended=ran[1])
    message = Message(**{**_fields(made.message()), "at": reported})
    return Records(
        {order.key: order}, [], {made.JOB: made.row()}, [NodeLog("gpu", [run], [], 1, [])], [message]
    )


def _fields(message: Message) -> dict[str, object]:
    return {name: getattr(message, name) for name in Message.__slots__}


def test_a_job_of_another_time_is_judged() -> None:
    kept, left_out = without_lost_commits(records(accepted=10.0, ran=(20.0, 30.0), reported=31.0), [SPAN])
    assert left_out == 0
    assert (len(kept.orders), len(kept.rows or ()), len(kept.logs[0].runs), len(kept.messages)) == (
        1,
        1,
        1,
        1,
    )


def test_a_job_that_was_accepted_ran_or_called_back_then_is_left_out() -> None:
    for touched in (
        records(accepted=101.0, ran=(120.0, 130.0), reported=131.0),
        records(accepted=10.0, ran=(90.0, 101.0), reported=131.0),
        records(accepted=10.0, ran=(101.5, 120.0), reported=131.0),
        records(accepted=10.0, ran=(20.0, 30.0), reported=101.0),
    ):
        kept, left_out = without_lost_commits(touched, [SPAN])
        assert left_out == 1
        assert (kept.orders, kept.rows, kept.logs[0].runs, kept.messages) == ({}, {}, [], [])
