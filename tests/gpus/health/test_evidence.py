"""Which health answers prove a quarantined slot free."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpus.health.evidence import Suspect, past_run_limit, proven_by_count, proven_by_health
from gpus.runners.base import Health

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD = NOW - timedelta(seconds=60)
ONE = Suspect(1, "a1", "boot-1", since=OLD, until=NOW + timedelta(seconds=600))
TWO = replace(ONE, key=2, attempt_id="a2", since=OLD + timedelta(seconds=1))


def jobs(*attempts: str) -> frozenset[tuple[str, str]]:
    return frozenset((f"job-of-{attempt}", attempt) for attempt in attempts)


def test_another_boot_id_is_a_proof() -> None:
    assert proven_by_health([ONE], Health(True, boot_id="boot-2"), NOW) == {1: "the server restarted"}


def test_the_same_boot_id_is_no_proof() -> None:
    assert proven_by_health([ONE], Health(True, boot_id="boot-1", active_jobs=1), NOW) == {}


def test_an_unknown_boot_is_no_restart() -> None:
    assert proven_by_health([replace(ONE, boot_id="")], Health(True, boot_id="boot-2"), NOW) == {}
    assert proven_by_health([ONE], Health(True, boot_id=""), NOW) == {}


def test_a_job_list_is_a_proof_only_without_the_attempt() -> None:
    health = Health(True, boot_id="boot-1", jobs=jobs("a2", "other"))
    assert proven_by_health([ONE, TWO], health, NOW) == {1: "the server does not run it"}


def test_a_suspect_without_a_name_needs_an_empty_list() -> None:
    nameless = replace(ONE, attempt_id="")
    assert proven_by_health([nameless], Health(True, jobs=jobs("x")), NOW) == {}
    assert proven_by_health([nameless], Health(True, jobs=jobs()), NOW) == {1: "the server runs nothing"}


def test_a_failing_server_is_no_proof() -> None:
    assert proven_by_health([ONE], Health(False, boot_id="boot-2", jobs=jobs(), error="502"), NOW) == {}


def test_no_proof_in_the_first_second_after_the_request() -> None:
    fresh = replace(ONE, since=NOW - timedelta(seconds=0.5))
    assert proven_by_health([fresh], Health(True, jobs=jobs()), NOW) == {}


def test_counts_free_as_many_as_are_missing_the_oldest_first() -> None:
    def freed(active: int, leases: int = 2, quiet: float = 20.0) -> list[int]:
        return list(
            proven_by_count([TWO, ONE], Health(True, active_jobs=active), leases=leases, quiet_seconds=quiet)
        )

    assert freed(active=4) == []
    assert freed(active=3) == [1]
    assert freed(active=2) == [1, 2]
    assert freed(active=0, leases=0) == [1, 2]


def test_a_lease_counts_as_a_run_only_after_the_steady_time() -> None:
    """The lease's run may have ended, and the counted job may be the suspect."""
    one_runs = Health(True, active_jobs=1)
    assert proven_by_count([ONE], one_runs, leases=1, quiet_seconds=19.9) == {}
    assert list(proven_by_count([ONE], one_runs, leases=1, quiet_seconds=20.0)) == [1]
    assert list(proven_by_count([TWO, ONE], one_runs, leases=1, quiet_seconds=5.0)) == [1]


def test_counts_are_not_trusted_while_leases_change() -> None:
    assert proven_by_count([ONE], Health(True, active_jobs=0), leases=0, quiet_seconds=4.9) == {}


def test_counts_do_not_overrule_a_list() -> None:
    assert (
        proven_by_count([ONE], Health(True, active_jobs=0, jobs=jobs("a1")), leases=0, quiet_seconds=9.0)
        == {}
    )


def test_the_end_of_the_run_limit_is_a_proof() -> None:
    assert past_run_limit([ONE, replace(TWO, until=NOW)], NOW) == {2: "the model's run limit has passed"}


def test_an_answer_from_before_the_abandonment_is_no_proof() -> None:
    """A pinned worker's heartbeat may be seconds old: older than the run that it does not name."""
    released = replace(ONE, since=NOW - timedelta(seconds=3))
    for said in (Health(True, jobs=jobs()), Health(True, boot_id="boot-2", jobs=jobs())):
        assert proven_by_health([released], replace(said, age_seconds=2.5), NOW) == {}
        assert proven_by_health([released], replace(said, age_seconds=1.5), NOW) != {}
