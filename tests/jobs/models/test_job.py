from __future__ import annotations

import pytest
from django.db import connection

from foundation.ids import new_id
from jobs.models import Job
from tests.support.factories import make_job

pytestmark = pytest.mark.database


@pytest.mark.django_db
def test_a_process_of_the_previous_release_can_insert_jobs() -> None:
    """During an upgrade, the INSERT of the previous release lacks the newest columns."""
    make_job()
    new = {"error_fingerprint"}
    known = [field.column for field in Job._meta.concrete_fields if field.column not in new | {"id"}]
    columns, job_id = ", ".join(f'"{column}"' for column in known), new_id()
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO jobs_job (id, {columns}) SELECT %s, {columns} FROM jobs_job",
            [job_id],
        )
    assert Job.objects.get(id=job_id).error_fingerprint == ""
