"""Erased artifacts in both stores: gone for each reader at once, and the same bytes may come again."""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from artifacts.keep import LocalFile, keep_file
from artifacts.models import Artifact, ArtifactUse
from artifacts.outputs import Maker, OutputMissing, Secured, new_output, record, secure
from artifacts.removal import (
    UNKNOWN_TIME,
    erase_unused,
    remove_announced,
    remove_erased,
    remove_now,
    remove_unknown,
)
from artifacts.store.contract import SignedRequest, StoreUnavailable, is_blocked
from artifacts.uploads import Wanted, confirm, promise
from foundation.ids import new_id
from tests.support.stores import Stage

pytestmark = [pytest.mark.django_db(transaction=True)]
DATA = b"a picture of the tenant"
SHA = hashlib.sha256(DATA).hexdigest()


def stored(stage: Stage) -> Artifact:
    """An artifact that came by its signed URL."""
    now = datetime.now(UTC)
    promised = promise(Wanted(7, SHA, len(DATA)), stage.store, now)
    assert promised.upload is not None
    assert stage.send(promised.upload, DATA).status_code == 200
    confirm([promised.artifact], stage.store, now)
    return Artifact.objects.get(pk=promised.artifact.pk, state="stored")


def erase(stage: Stage, row: Artifact) -> list[str]:
    now = datetime.now(UTC)
    with transaction.atomic():
        erased = erase_unused([row.pk], now)
    remove_erased(erased, stage.store, now)
    return erased


def test_a_url_that_was_signed_before_finds_nothing_and_the_bytes_may_come_again(stage: Stage) -> None:
    row = stored(stage)
    signed = stage.store.sign_get(row.key, 600.0)
    assert stage.send(signed).content == DATA
    assert erase(stage, row) == [row.pk]
    assert not has_bytes(stage, signed)
    assert stage.send(signed, Range="bytes=0-3").status_code in (404, 416)
    row.refresh_from_db()
    assert (row.state, row.removed_at is not None) == ("gone", True)
    again = stored(stage)
    assert again.pk != row.pk
    later = datetime.now(UTC) + timedelta(hours=3)
    remove_announced(stage.store, later, 100)
    assert stage.store.find(again.key) is not None, "no sweep takes the new object for the old one"


def has_bytes(stage: Stage, signed: SignedRequest) -> bool:
    answer = stage.send(signed)
    return answer.status_code == 200 and answer.content != b""


@pytest.mark.database
@pytest.mark.parametrize("by_request", [True, False])
def test_a_put_that_was_signed_before_does_not_bring_the_bytes_back(stage: Stage, by_request: bool) -> None:
    now = datetime.now(UTC)
    put = promise(Wanted(7, SHA, len(DATA)), stage.store, now).upload
    assert put is not None
    row = stored(stage)
    get = stage.store.sign_get(row.key, 600.0)
    if by_request:
        remove_now(row.pk, stage.store, now)
    else:
        erase(stage, row)
    assert stage.send(put, DATA).status_code == 412
    assert not has_bytes(stage, get)
    later = now + UNKNOWN_TIME + timedelta(hours=1)
    assert remove_unknown(list(stage.store.objects()), stage.store, later).removed == 1, "nothing is left"
    # a PUT that began before the removal ended after it: a client that has only the hash gets no object
    stage.store.write(row.key, len(DATA), [DATA])
    again = promise(Wanted(7, SHA, len(DATA)), stage.store, now + timedelta(minutes=1))
    assert again.upload is not None
    assert not has_bytes(stage, get)


@pytest.mark.database
def test_a_former_tenants_bytes_are_of_no_use_to_a_new_one_with_its_id(stage: Stage) -> None:
    """After the restore of an older database, which does not know that the id was in use."""
    row = stored(stage)
    row.delete()
    now = datetime.now(UTC) + timedelta(hours=1)
    again = promise(Wanted(row.tenant_id, SHA, len(DATA)), stage.store, now)
    assert again.upload is not None, "its bytes have to be sent"
    assert stage.store.find(row.key) is None
    assert stage.send(again.upload, DATA).status_code in (200, 201)
    later = now + timedelta(seconds=1)
    assert promise(Wanted(row.tenant_id, SHA, len(DATA)), stage.store, later).upload is None


@pytest.mark.database
def test_an_object_that_came_under_a_new_row_or_from_a_run_is_taken(stage: Stage) -> None:
    row = stored(stage)
    row.delete()
    now = datetime.now(UTC)
    assert promise(Wanted(row.tenant_id, SHA, len(DATA)), stage.store, now).upload is None
    Artifact.objects.all().delete()
    new_output(row.tenant_id, "A" * 26, SHA, len(DATA), now=now)
    later = now + timedelta(hours=1)
    assert promise(Wanted(row.tenant_id, SHA, len(DATA)), stage.store, later).upload is None


def test_a_put_stays_refused_after_the_life_of_urls_was_shortened(stage: Stage, settings: Any) -> None:
    """A row stores when its URL expires; for one of an earlier version the longest life is assumed."""
    before = settings.DISPATCHER
    for of_earlier_version in (False, True):
        settings.DISPATCHER = replace(before, artifact_url_seconds=7200.0)
        now = datetime.now(UTC)
        put = promise(Wanted(7, SHA, len(DATA)), stage.store, now).upload
        assert put is not None
        row = stored(stage)
        settings.DISPATCHER = replace(before, artifact_url_seconds=1.0)
        if of_earlier_version:
            Artifact.objects.filter(pk=row.pk).update(put_until=None)
        with transaction.atomic():
            erased = erase_unused([row.pk], now)
        remove_erased(erased, stage.store, now + timedelta(hours=2))
        assert stage.send(put, DATA).status_code == 412


def test_an_old_artifact_leaves_nothing(stage: Stage) -> None:
    row = stored(stage)
    Artifact.objects.filter(pk=row.pk).update(put_until=datetime.now(UTC) - timedelta(hours=1))
    remove_now(row.pk, stage.store, datetime.now(UTC))
    assert list(stage.store.objects()) == []


def test_one_that_something_uses_stays_as_it_is(stage: Stage) -> None:
    row = stored(stage)
    use = ArtifactUse.objects.create(artifact=row, job="J" * 26)
    assert erase(stage, row) == []
    before, row = row, Artifact.objects.get(pk=row.pk)
    assert (row.state, row.expires_at, row.tombstoned_at) == ("stored", before.expires_at, None)
    use.delete()
    assert erase(stage, row) == [row.pk]
    assert erase(stage, row) == [], "it is counted once"


def test_without_the_store_the_sweep_removes_the_object_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = stored(stage)

    def away(*_: Any) -> None:
        raise StoreUnavailable("The store does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(type(stage.store), "block", away)
        assert erase(stage, row) == [row.pk]
    row.refresh_from_db()
    assert (row.state, row.removed_at) == ("gone", None)
    now = datetime.now(UTC)
    assert remove_announced(stage.store, now, 100).looked == 0, "the request may still be at it"
    assert remove_announced(stage.store, now + timedelta(minutes=3), 100).removed == 1
    found = stage.store.find(row.key)
    assert found is not None
    assert is_blocked(found)


def test_many_objects_are_left_to_the_sweep(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    from artifacts import removal

    monkeypatch.setattr(removal, "ERASED_AT_ONCE", 1)
    first = stored(stage)
    other = Artifact.objects.create(
        id=new_id(), tenant_id=7, sha256="0" * 64, bytes=1, state="stored",
        created_at=first.created_at, expires_at=first.expires_at,
    )  # fmt: skip
    now = datetime.now(UTC)
    with transaction.atomic():
        erased = erase_unused([first.pk, other.pk], now)
    remove_erased(erased, stage.store, now)
    gone = Artifact.objects.filter(state="gone")
    assert gone.count() == 2
    assert gone.exclude(removed_at=None).count() == 1


@pytest.mark.database
def test_erased_content_may_come_again_by_a_form_by_a_run_and_by_many_promises(stage: Stage) -> None:
    now = datetime.now(UTC)
    erase(stage, stored(stage))
    form = LocalFile(io.BytesIO(DATA), SHA, len(DATA))
    row = keep_file(form, tenant_id=7, content_type="text/plain", store=stage.store, now=now)
    erase(stage, row)
    now, maker = datetime.now(UTC), Maker("J" * 26, "A" * 26, 1)
    output = new_output(7, maker.attempt, SHA, len(DATA), now=now)
    stage.store.write(row.key, len(DATA), [DATA])
    outputs = secure(7, [output], maker, stage.store, now)
    with transaction.atomic():
        record(Secured(outputs, 7, now), maker, now)
    ArtifactUse.objects.all().delete()
    assert b"".join(stage.store.chunks(row.key)) == DATA
    erase(stage, Artifact.objects.get(state="stored"))

    def send(_: int) -> None:
        try:
            again = promise(Wanted(7, SHA, len(DATA)), stage.store, datetime.now(UTC))
            assert again.upload is None or stage.send(again.upload, DATA).status_code in (200, 412)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(4)))
    assert b"".join(stage.store.chunks(row.key)) == DATA


def test_an_erasure_between_the_write_of_an_output_and_its_end_is_found_out(stage: Stage) -> None:
    row, now, maker = stored(stage), datetime.now(UTC), Maker("J" * 26, "A" * 26, 1)
    output = new_output(7, maker.attempt, SHA, len(DATA), now=now)
    stage.store.write(row.key, len(DATA), [DATA])
    remove_now(row.pk, stage.store, now)
    with pytest.raises(OutputMissing):
        secure(7, [output], maker, stage.store, now)


def test_a_promise_of_another_length_makes_no_artifact_of_bytes_that_an_old_url_brings(stage: Stage) -> None:
    row = stored(stage)
    put = stage.store.sign_put(row.key, len(DATA), 60.0)
    erase(stage, row)
    other = promise(Wanted(7, SHA, 5), stage.store, datetime.now(UTC)).artifact
    stage.send(put, DATA)
    confirm([other], stage.store, datetime.now(UTC))
    assert Artifact.objects.get(pk=other.pk).state == "promised"
