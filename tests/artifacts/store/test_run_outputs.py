"""Outputs of a run in both stores: saved, secured, recorded."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from artifacts.keys import ObjectKey
from artifacts.models import Artifact, ArtifactUse
from artifacts.outputs import Maker, OutputMissing, SavedOutput, Secured, new_output, record, secure
from artifacts.removal import remove_unknown
from foundation.ids import new_id
from tests.support.stores import Stage

pytestmark = [pytest.mark.django_db(transaction=True)]
MAKER = Maker(new_id(), new_id(), 1)


def saved(stage: Stage, data: bytes) -> SavedOutput:
    digest = hashlib.sha256(data).hexdigest()
    output = new_output(7, MAKER.attempt, digest, len(data), now=datetime.now(UTC))
    pieces = (data[first : first + 1_000_000] for first in range(0, len(data), 1_000_000))
    stage.store.write(ObjectKey(7, digest), len(data), pieces)
    return output


def test_outputs_are_recorded_once_the_store_has_them(stage: Stage) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + os.urandom(1000)
    outputs = [saved(stage, data) for data in (picture, os.urandom(10_000_000), b"")]
    now = datetime.now(UTC)
    secured = Secured(secure(7, outputs, MAKER, stage.store, now), 7, now)
    assert not Artifact.objects.exists()
    for _ in range(2):  # a COMMIT whose reply was lost is repeated
        with transaction.atomic():
            assert record(secured, MAKER, now) == {one.id: one.id for one in outputs}
    assert ArtifactUse.objects.filter(job=MAKER.job).count() == 3
    for row in Artifact.objects.all():
        digest = hashlib.sha256(b"".join(stage.store.chunks(row.key))).hexdigest()
        assert (row.state, digest) == ("stored", row.sha256)
    assert Artifact.objects.get(pk=outputs[0].id).content_type == "image/png"


def test_an_output_that_the_store_does_not_have_is_found_out(stage: Stage) -> None:
    there = saved(stage, b"there")
    missing = SavedOutput(new_id(), "0" * 64, 5)
    longer = SavedOutput(new_id(), there.sha256, 6)
    for outputs in ([there, missing], [longer]):
        with pytest.raises(OutputMissing):
            secure(7, outputs, MAKER, stage.store, datetime.now(UTC))


def test_bytes_of_a_run_whose_end_was_not_written_are_orphans_for_a_day(stage: Stage) -> None:
    """Its worker was killed between the store and the commit."""
    saved(stage, b"orphan")
    (left,) = stage.store.objects()
    now = datetime.now(UTC)
    assert remove_unknown([left], stage.store, now + timedelta(hours=23)).removed == 0
    assert remove_unknown([left], stage.store, now + timedelta(hours=25)).removed == 1
    assert stage.store.find(left.key) is None
