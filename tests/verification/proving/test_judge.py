"""The judge finds each contradiction, and none in consistent records."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.verification.proving import made
from verification.proving import judge
from verification.proving.judge import Finding
from verification.proving.records import JobRow, Order


def kinds(wrongs: Iterable[Finding]) -> list[str]:
    return sorted(wrong.kind for wrong in wrongs)


def ledger(order: Order, *rows: JobRow) -> list[str]:
    return kinds(judge.compare_ledger_with_rows([order], made.rows(*rows)))


def test_consistent_records_have_no_findings():
    orders, rows, logs = [made.order(callback=True)], made.rows(), [made.log()]
    assert ledger(made.order()) == []
    assert kinds(judge.compare_rows_with_runs(rows, logs, {"gpu": 1})) == []
    assert kinds(judge.compare_rows_with_messages(orders, rows, [made.message()])) == []
    assert kinds(judge.requests_to_full_servers(logs, {})) == []


# -- the clients' ledger and the database --------------------------------------------------------------------


def test_a_lost_job_is_found():
    assert kinds(judge.compare_ledger_with_rows([made.order()], {})) == ["lost"]


def test_a_job_that_is_in_no_clients_ledger_is_found():
    assert ledger(made.order(), made.row(), made.row(id="job-2")) == ["unknown_job"]


def test_two_jobs_of_one_key_are_found():
    assert ledger(made.order(job_ids=["job-1", "job-2"]), made.row(), made.row(id="job-2")) == ["two_jobs"]


def test_a_submit_that_never_succeeded_is_found():
    assert ledger(made.order(job_ids=[], reported=""), made.row()) == ["never_accepted", "unknown_job"]


def test_a_job_that_is_not_over_is_found():
    assert ledger(made.order(reported=""), made.row(state="running")) == ["not_over"]


def test_a_client_that_read_another_end_is_found():
    assert ledger(made.order(reported="cancelled", reported_code="cancelled")) == ["client_read_differs"]


def test_a_confirmed_cancel_that_did_not_happen_is_found():
    assert ledger(made.order(cancel="cancelled")) == ["cancel_ignored"]
    assert ledger(made.order(cancel="requested")) == []
    assert ledger(made.order(cancel="unanswered: gone")) == ["cancel_unanswered"]


def test_an_unrequested_cancel_is_found():
    cancelled = made.row(state="cancelled", error_code="cancelled", attempts=())
    reported = {"reported": "cancelled", "reported_code": "cancelled"}
    assert ledger(made.order(**reported), cancelled) == ["cancelled_unasked"]
    assert ledger(made.order(**reported, cancel="cancelled"), cancelled) == []


@pytest.mark.parametrize(
    ("code", "order", "lost_attempts", "found"),
    [
        ("server_lost", {}, 0, ["failed"]),
        ("deadline_exceeded", {}, 0, ["failed"]),
        ("deadline_exceeded", {"deadline_seconds": 5.0}, 0, []),
        ("lost_at_most_once", {}, 0, ["failed"]),
        ("lost_at_most_once", {"model": "prove-once"}, 0, []),
        ("poison", {}, 2, ["failed"]),
        ("poison", {}, 3, []),
    ],
)
def test_a_failure_needs_a_reason_in_its_order(code, order, lost_attempts, found):
    lost = tuple(made.attempt(id=f"a{n}", number=n, state="lost") for n in range(lost_attempts))
    failed = made.row(state="failed", error_code=code, attempts=lost, result_attempt=None)
    assert ledger(made.order(reported="failed", reported_code=code, **order), failed) == found


def test_a_deadline_that_passed_too_early_is_found():
    order = made.order(deadline_seconds=60.0)
    assert kinds(judge.check_deadlines([order], {made.JOB: 1020.0})) == ["deadline_too_early"]
    assert kinds(judge.check_deadlines([order], {made.JOB: 1059.5})) == []


# -- the database and the GPU servers ------------------------------------------------------------------------


def against_runs(*runs, row=None, **log) -> list[str]:
    rows = made.rows(*([row] if row else []))
    return kinds(judge.compare_rows_with_runs(rows, [made.log(*runs, **log)], {"gpu": 1}))


def test_a_server_that_ran_more_than_it_has_slots_is_found():
    assert against_runs(peak=2) == ["oversubscribed"]


def test_two_runs_at_once_on_one_slot_are_found():
    assert against_runs(overlapping=((made.run(), made.run()),)) == ["slot_shared"]


@pytest.mark.parametrize(("lied_until", "found"), [(1000.0, ["slot_shared"]), (1001.0, [])])
def test_a_server_that_denied_its_runs_may_get_the_slot_again(lied_until, found):
    logs = [made.log(overlapping=((made.run(), made.run(started=1000.5)),))]
    excused = {"gpu": [(990.0, lied_until)]}
    assert kinds(judge.compare_rows_with_runs(made.rows(), logs, {"gpu": 1}, excused=excused)) == found


def test_a_completed_job_that_no_gpu_ran_to_its_end_is_found():
    assert against_runs(made.run(outcome="cancelled")) == ["never_ran"]
    assert against_runs(made.run(attempt_id="another")) == ["never_ran"]


def test_two_results_are_found():
    twice = made.row(attempts=(made.attempt(), made.attempt(id="attempt-2", number=2)))
    assert against_runs(row=twice) == ["two_results"]


def test_a_result_of_another_attempt_is_found():
    assert against_runs(row=made.row(result_attempt="attempt-0")) == ["result_of_another"]


def test_a_discarded_result_is_found():
    assert against_runs(row=made.row(state="failed", error_code="timeout")) == ["result_thrown_away"]


def test_an_attempt_that_ran_twice_is_found():
    assert against_runs(made.run(), made.run()) == ["attempt_ran_twice"]


def test_a_second_run_where_only_one_is_allowed_is_found():
    once = made.row(model="prove-once")
    assert against_runs(made.run(), made.run(attempt_id="attempt-0"), row=once) == ["ran_more_than_once"]


def test_a_run_that_is_active_after_the_drain_is_found():
    found = against_runs(made.run(), made.run(attempt_id="attempt-2", outcome="", ended=None))
    assert found == ["still_runs"]


def test_a_run_of_a_job_that_does_not_exist_is_found():
    assert against_runs(made.run(), made.run(job_id="job-9", attempt_id="attempt-9")) == ["ran_unknown"]


def test_runs_without_an_attempt_are_counted():
    stray = made.run(attempt_id="attempt-0")
    assert judge.unrecorded_runs(made.rows(), [made.log(made.run(), stray)]) == [stray]


def test_a_request_to_a_full_server_is_found_although_that_refused_it():
    full = [made.log(refusals=(made.refusal(),))]
    assert kinds(judge.requests_to_full_servers(full, {})) == ["sent_to_full"]
    assert kinds(judge.requests_to_full_servers(full, {"gpu": [(990.0, 1010.0)]})) == []
    assert kinds(judge.requests_to_full_servers(full, {"other": [(990.0, 1010.0)]})) == ["sent_to_full"]
    late = [made.log(refusals=(made.refusal(why="stale_fence"),))]
    assert kinds(judge.requests_to_full_servers(late, {})) == []


# -- the database and the callback receiver ------------------------------------------------------------------


def against_messages(*messages, asked=True, row=None) -> list[str]:
    rows = made.rows(*([row] if row else []))
    return kinds(judge.compare_rows_with_messages([made.order(callback=asked)], rows, messages))


def test_a_callback_that_never_came_is_found():
    assert against_messages() == ["callback_missing"]


def test_an_unrequested_callback_is_found():
    assert against_messages(made.message(), asked=False) == ["callback_unasked"]


def test_an_unsigned_callback_is_found():
    assert against_messages(made.message(signed=False)) == ["callback_unsigned"]
    assert against_messages(made.message(signed=None)) == []


def test_a_repeated_callback_is_fine_and_a_doubled_one_is_found():
    assert against_messages(made.message(), made.message()) == []
    assert against_messages(made.message(), made.message(webhook_id="msg-2")) == ["callback_doubled"]


def test_callbacks_with_different_ends_are_found():
    found = against_messages(made.message(), made.message(status="failed", attempt_id=""))
    assert found == ["callback_contradiction"]


def test_a_callback_with_another_end_than_the_job_is_found():
    assert against_messages(made.message(status="failed", attempt_id="")) == ["callback_wrong"]
    assert against_messages(made.message(attempt_id="attempt-0")) == ["callback_wrong"]
    assert against_messages(made.message(attempt_id="")) == ["callback_wrong"]
    assert against_messages(made.message(attempt_id="", is_long=True)) == []


def test_a_callback_of_an_unknown_job_is_found():
    assert against_messages(made.message(), made.message(job_id="job-9")) == ["callback_unknown"]


# -- the queue after a flush ---------------------------------------------------------------------------------


def test_an_order_that_a_flush_lost_is_found():
    flushed_at = 2000.0
    rows = made.rows(*(made.row(id=f"job-{n}", place_us=(1900 + n) * 1_000_000) for n in range(3)))

    def runs(*starts: float):
        return [made.log(*(made.run(job_id=f"job-{n}", started=at) for n, at in enumerate(starts)))]

    assert kinds(judge.check_order(rows, runs(2001.0, 2002.0, 2003.0), flushed_at)) == []
    assert kinds(judge.check_order(rows, runs(2004.0, 2002.0, 2003.0), flushed_at)) == []
    assert kinds(judge.check_order(rows, runs(2020.0, 2002.0, 2003.0), flushed_at)) == ["order_lost"]
    assert kinds(judge.check_order(rows, runs(1950.0, 2002.0, 2003.0), flushed_at)) == []
