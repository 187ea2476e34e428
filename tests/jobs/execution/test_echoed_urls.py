"""What a long text of a hostile GPU server costs. Which URLs go: test_artifact_inputs.py."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from artifacts.models import Artifact, ArtifactUse
from foundation.ids import new_id
from jobs.execution.echoed_urls import without_input_urls
from tests.support.factories import make_tenant

pytestmark = pytest.mark.django_db

TEXT_BYTES = 1_000_000


def test_a_text_that_is_all_hexadecimal_costs_no_multiple_of_its_length() -> None:
    now = datetime.now(UTC)
    row = Artifact.objects.create(
        id=new_id(now.timestamp()),
        tenant_id=make_tenant().pk,
        sha256="0a" * 32,
        bytes=1,
        state="stored",
        created_at=now,
        expires_at=now + timedelta(days=1),
    )
    job_id = new_id(now.timestamp())
    ArtifactUse.objects.create(artifact=row, job=job_id, run="")
    text = f"https://host/{'ab' * (TEXT_BYTES // 2)}?signature=secret"
    tracemalloc.start()
    try:
        assert without_input_urls({"log": text}, job_id) == {"log": text}
        assert tracemalloc.get_traced_memory()[1] < 4 * TEXT_BYTES
    finally:
        tracemalloc.stop()
    own = f"see https://host/a/7/{row.sha256}?signature=secret"
    assert without_input_urls([own], job_id) == [own.replace("secret", "…")]
