"""The laws of schedules notice what they forbid: planted violations, each taken back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F

from jobs.models import Job
from tests.support.schedules import Stage
from verification.schedule_laws import check_schedules
from workflows.schedules.models import Firing, Schedule

pytestmark = pytest.mark.django_db(transaction=True)
Plant = Callable[[], Any]


def started() -> Firing:
    """The first firing that started something."""
    return Firing.objects.filter(outcome="started").order_by("id")[0]


def unstarted(outcome: str, reason: str, **more: Any) -> Plant:
    """The last due time started nothing."""

    def plant() -> None:
        last = Firing.objects.latest("id")
        Firing.objects.filter(id=last.id).update(
            outcome=outcome, reason=reason, job_id=None, ended_at=None, end_state="", **more
        )

    return plant


def policy(**fields: Any) -> Plant:
    return lambda: Schedule.objects.update(**fields)


def later(seconds: float) -> Plant:
    return lambda: Firing.objects.update(at=F("at") + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("fields", "plant", "says"),
    [
        ({"overlap": "skip"}, policy(overlap="queue_all"), "its overlap policy is queue_all"),
        ({"overlap": "skip"}, policy(overlap="cancel_previous"), "its overlap policy is cancel_previous"),
        (
            {"overlap": "skip"},
            lambda: Firing.objects.filter(outcome="started").update(ended_at=F("due_at")),
            "no other one was under way",
        ),
        ({"overlap": "allow"}, policy(overlap="skip"), "ran at once"),
        ({"overlap": "allow"}, unstarted("missed", "late"), "it was only"),
        (
            {"overlap": "allow", "catch_up": "all"},
            unstarted("missed", "late", at=F("due_at") + timedelta(seconds=100)),
            "all are caught up",
        ),
        (
            {"overlap": "allow", "catch_up": "last"},
            unstarted("missed", "late", at=F("due_at") + timedelta(seconds=45)),
            "last are caught up",
        ),
        ({"overlap": "allow", "catch_up": "none"}, later(100.0), "it was 100.0 s late"),
        ({"overlap": "allow"}, later(-9.0), "it was 9.0 s early"),
        ({"overlap": "queue_all"}, lambda: None, "still waits"),
        (
            {"overlap": "allow"},
            lambda: Job.objects.filter(id=started().job_id).update(
                state="completed", finished_at=F("created_at")
            ),
            "ended as nothing",
        ),
        (
            {"overlap": "cancel_previous"},
            unstarted("skipped", "superseded"),
            "there is no newer one",
        ),
    ],
)
def test_a_fate_that_the_policies_do_not_explain_is_noticed(
    stage: Stage, fields: dict[str, Any], plant: Plant, says: str
) -> None:
    stage.put(every_seconds=60, **fields)
    stage.run_for(200)
    assert not list(check_schedules())
    with transaction.atomic():
        plant()
        found = list(check_schedules(drained=True))
        assert any(one.startswith("(16)") and says in one for one in found), found
        transaction.set_rollback(True)
