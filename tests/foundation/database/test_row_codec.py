"""The short conversions of values are equivalent to those of the fields."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection
from django.db.models import Max

from foundation.database import statements
from foundation.database.row_codec import database_value, new_row
from foundation.database.statements import value
from gpus.models import Server
from jobs.domain.states import JobState
from jobs.models import Attempt, Callback, Event, Job
from tests.support.factories import make_job

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
def test_a_value_is_stored_as_its_field_would(field: Any, given: Any) -> None:
    assert repr(database_value(field, given, connection)) == repr(field.get_db_prep_save(given, connection))


@pytest.mark.parametrize("moment", [NOON, NOON + timedelta(microseconds=10), NOON.astimezone(EAST), None])
def test_a_datetime_is_read_back_also_from_an_expression(moment: datetime | None) -> None:
    job = make_job(deadline_at=moment)
    latest = statements.Read(
        lambda: (
            Job.objects.filter(id=value(Job, "id")).values_list("deadline_at").annotate(Max("deadline_at"))
        )
    )
    [found] = latest(id=job.id)
    assert found == (moment, moment)
    assert all(one is None or one.tzinfo is UTC for one in found) or connection.vendor != "sqlite"


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Attempt, {"id": "A" * 26, "job_id": "B" * 26, "number": 2, "state": "sent", "started_at": NOON}),
        (Event, {"job_id": "B" * 26, "seq": 1, "type": "queued", "at": NOON, "data": {"a": 1}}),
        (Callback, {"id": "msg_1", "job_id": "B" * 26, "url": "https://example.org", "body": "{}"}),
        (Job, {"id": "B" * 26, "tenant_id": 7, "model": "flux", "payload": {"a": [1]}}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_new_row_equals_one_of_the_models_constructor(model: Any, given: dict[str, Any]) -> None:
    row, usual = new_row(model, **given), model(**given)
    drawn = {name for name, one in vars(usual).items() if one != vars(model(**given))[name]} - {"_state"}
    for name in vars(usual).keys() - drawn - {"_state"}:
        assert getattr(row, name) == getattr(usual, name), name
    assert vars(row).keys() == vars(usual).keys()
    assert (row._state.adding, row._state.db) == (True, None)


def test_mutable_defaults_are_not_shared_between_rows() -> None:
    rows = [new_row(Job, id="B" * 26, tenant_id=7, model="flux") for _ in range(2)]
    rows[0].tags.append("mine")
    assert rows[1].tags == []


def test_an_unknown_column_name_is_refused() -> None:
    with pytest.raises(TypeError, match="Event has no when"):
        new_row(Event, job_id="B" * 26, when=NOON)


def test_a_row_equals_that_of_its_queryset() -> None:
    made = make_job(deadline_at=NOON)
    row = statements.Read(lambda: Job.objects.filter(id=value(Job, "id")).defer("payload")).first(id=made.id)
    usual = Job.objects.defer("payload").get(id=made.id)
    assert {name: one for name, one in vars(row).items() if name != "_state"} == {
        name: one for name, one in vars(usual).items() if name != "_state"
    }
    assert (row._state.adding, row._state.db) == (usual._state.adding, usual._state.db)
    assert row.get_deferred_fields() == {"payload"}
    assert row.payload == made.payload  # read when accessed
    assert row.tenant == made.tenant
    row.priority = 1
    row.save(update_fields=["priority"])
    assert Job.objects.get(id=made.id).priority == 1


def test_a_customized_from_db_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def from_db(cls: Any, database: Any, names: Any, columns: Any) -> Any:
        seen.append(str(columns[0]))
        return cls(**dict(zip(names, columns, strict=True)))

    monkeypatch.setattr(Job, "from_db", classmethod(from_db))
    job = make_job()
    [row] = statements.Read(Job.objects.all)()
    assert (seen, row.id) == ([job.id], job.id)
