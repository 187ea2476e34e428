"""The short way of a value into a column and out of it says what the field would say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection
from django.db.models import Max

from gpus.models import Server, prepared
from gpus.models.columns import saved
from gpus.models.prepared import value
from jobs.models import Attempt, Job
from jobs.states import JobState
from tests.builders import make_job

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
EAST = timezone(timedelta(hours=5))


@pytest.mark.parametrize(
    ("field", "given"),
    [
        *((Job._meta.get_field("model"), one) for one in ("flux", "", None, 7, JobState.QUEUED)),
        *((Job._meta.get_field("priority"), one) for one in (5, None, True, "5", 5.0)),
        *((Job._meta.get_field("place_us"), one) for one in (1 << 60, "7")),
        *((Job._meta.get_field("payload"), one) for one in ({"a": [1, None]}, None)),
        *((Job._meta.get_field("tenant"), one) for one in (3, "3", None)),
        *((Attempt._meta.get_field("gpu_seconds"), one) for one in (1.5, 2, None)),
        *((Attempt._meta.get_field("counted"), one) for one in (True, None)),
        *((Attempt._meta.get_field("job"), one) for one in ("A" * 26, None)),
        *((Server._meta.get_field("pool"), one) for one in ("flux", 7)),
        *(
            (Job._meta.get_field("deadline_at"), one)
            for one in (NOON, NOON + timedelta(microseconds=1), NOON.astimezone(EAST), str(NOON), None)
        ),
    ],
    ids=lambda one: getattr(one, "attname", None) or repr(one),
)
def test_a_value_is_saved_as_its_field_says(field: Any, given: Any) -> None:
    assert repr(saved(field, given, connection)) == repr(field.get_db_prep_save(given, connection))


@pytest.mark.parametrize("moment", [NOON, NOON + timedelta(microseconds=10), NOON.astimezone(EAST), None])
def test_a_moment_comes_back_as_it_was_also_out_of_an_expression(moment: datetime | None) -> None:
    job = make_job(deadline_at=moment)
    latest = prepared.Read(
        lambda: (
            Job.objects.filter(id=value(Job, "id")).values_list("deadline_at").annotate(Max("deadline_at"))
        )
    )
    [found] = latest(id=job.id)
    assert found == (moment, moment)
    assert all(one is None or one.tzinfo is UTC for one in found) or connection.vendor != "sqlite"
