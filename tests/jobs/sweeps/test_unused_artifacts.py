"""The sweeps `unused_artifacts` and `unknown_objects`: unused objects are removed, and no others."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from artifacts import removal
from artifacts.errors import BeingRemoved
from artifacts.keys import ObjectKey
from artifacts.models import Artifact, ArtifactUse, ByteChange, RunUpload
from artifacts.store.contract import StoreUnavailable
from artifacts.store.local import LocalStore
from artifacts.uploads import Wanted, promise
from artifacts.uses import lock_for_use
from foundation.ids import new_id
from jobs.domain.states import AttemptState
from jobs.models import Attempt, SweepRun
from jobs.ports import Ports
from jobs.sweeps import unknown_objects, unused_artifacts
from jobs.sweeps.base import sweep_ages
from tests.support.factories import make_job, make_running
from tests.support.fakes import WrongClocks
from tests.support.queue_harness import NoRedis, VirtualClock

pytestmark = pytest.mark.django_db
HOUR = 3600.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def ports(clock: VirtualClock, tmp_path: Path, settings: Any) -> Ports:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)
    return Ports(
        clock=clock,
        leases=lambda _: NoRedis(),
        send_wakes=len,
        wake_callbacks=lambda _: None,
        announce=lambda _: None,
        after=lambda seconds, work: None,
    )


@pytest.fixture(autouse=True)
def in_use(clock: VirtualClock) -> None:
    """The database was in use until now."""
    SweepRun.objects.create(name=unknown_objects.NAME, at=clock.now())


def make_artifact(ports: Ports, data: bytes, *, expires_in: float = -1.0, **values: Any) -> Artifact:
    """A stored artifact with its object."""
    now = ports.clock.now()
    row = Artifact.objects.create(
        id=new_id(now.timestamp()),
        tenant_id=7,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        created_at=now,
        expires_at=now + timedelta(seconds=expires_in),
        **{"state": "stored", "put_until": now - timedelta(hours=1), **values},
    )
    ports.artifact_store.write(row.key, len(data), [data])
    return row


def has_object(ports: Ports, row: Artifact) -> bool:
    return ports.artifact_store.find(row.key) is not None


def state(row: Artifact) -> tuple[str, bool, bool]:
    """The state, whether it has a tombstone, and whether its object is removed."""
    row.refresh_from_db()
    return str(row.state), row.tombstoned_at is not None, row.removed_at is not None


def test_an_expired_artifact_is_announced_then_removed_an_hour_later(
    ports: Ports, clock: VirtualClock
) -> None:
    row, fresh = make_artifact(ports, b"old"), make_artifact(ports, b"fresh", expires_in=10 * HOUR)
    unused_artifacts.sweep(ports)
    assert (state(row), has_object(ports, row)) == (("stored", True, False), True)
    clock.advance(HOUR - 1)
    unused_artifacts.sweep(ports)
    assert has_object(ports, row)
    clock.advance(2)
    assert unused_artifacts.sweep(ports).repaired == 1
    assert (state(row), has_object(ports, row)) == (("gone", True, True), False)
    assert (state(fresh), has_object(ports, fresh)) == (("stored", False, False), True)


def test_a_sweep_with_another_folder_removes_and_lists_nothing(
    ports: Ports, clock: VirtualClock, settings: Any, tmp_path: Path
) -> None:
    row, unknown = make_artifact(ports, b"old"), make_artifact(ports, b"no row")
    unknown.delete()
    unused_artifacts.sweep(ports)
    clock.advance(30 * HOUR)
    settings.ARTIFACT_FOLDER = tmp_path / "other"
    for sweep in (unused_artifacts.sweep, unknown_objects.UnknownObjectsSweep()):
        assert "another host" in str(sweep(ports).notes)
    assert state(row) == ("stored", True, False)
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    unused_artifacts.sweep(ports)
    assert (state(row), has_object(ports, row)) == (("gone", True, True), False)


@pytest.mark.database
def test_a_promise_that_was_never_kept_goes_the_same_way(ports: Ports, clock: VirtualClock) -> None:
    row = make_artifact(ports, b"late", state="promised")
    unused_artifacts.sweep(ports)
    clock.advance(HOUR + 1)
    unused_artifacts.sweep(ports)
    assert (state(row), has_object(ports, row)) == (("gone", True, True), False)


def test_an_artifact_in_use_stays_however_old_it_is(ports: Ports, clock: VirtualClock) -> None:
    row = make_artifact(ports, b"used")
    use = ArtifactUse.objects.create(artifact=row, job="J" * 26)
    for _ in range(4):
        unused_artifacts.sweep(ports)
        clock.advance(HOUR + 1)
    assert (state(row), has_object(ports, row)) == (("stored", False, False), True)
    use.delete()
    clock.advance(24 * HOUR)
    unused_artifacts.sweep(ports)
    clock.advance(HOUR + 1)
    unused_artifacts.sweep(ports)
    assert not has_object(ports, row)


@pytest.mark.database
def test_a_use_after_the_tombstone_keeps_the_artifact(ports: Ports, clock: VirtualClock) -> None:
    row = make_artifact(ports, b"used again")
    unused_artifacts.sweep(ports)
    assert lock_for_use([row.pk]) == {row.pk}
    ArtifactUse.objects.create(artifact=row, job="J" * 26)
    clock.advance(2 * HOUR)
    unused_artifacts.sweep(ports)
    assert (state(row), has_object(ports, row)) == (("stored", False, False), True)


@pytest.mark.database
def test_a_use_that_was_written_under_a_standing_tombstone_keeps_it_too(
    ports: Ports, clock: VirtualClock
) -> None:
    row = make_artifact(ports, b"raced", tombstoned_at=ports.clock.now() - timedelta(hours=2))
    ArtifactUse.objects.create(artifact=row, job="J" * 26)
    unused_artifacts.sweep(ports)
    assert (state(row), has_object(ports, row)) == (("stored", False, False), True)


def test_a_gone_artifact_cannot_be_used(ports: Ports) -> None:
    row = make_artifact(ports, b"gone", state="gone", tombstoned_at=ports.clock.now())
    assert lock_for_use([row.pk]) == set()


def test_without_the_store_the_row_is_gone_and_the_object_goes_later(
    ports: Ports, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_artifact(ports, b"x", tombstoned_at=ports.clock.now() - timedelta(hours=2))

    def away(*_: Any) -> None:
        raise StoreUnavailable("The store does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "remove", away)
        count = unused_artifacts.sweep(ports)
    assert count.notes == ("store: The store does not answer.",)
    assert (state(row), has_object(ports, row)) == (("gone", True, False), True)
    clock.advance(180)
    unused_artifacts.sweep(ports)
    assert (state(row), has_object(ports, row)) == (("gone", True, True), False)


def unremovable(monkeypatch: pytest.MonkeyPatch, *rows: Artifact) -> None:
    """The store refuses to remove these objects."""
    real, locked = LocalStore.remove, {row.key for row in rows}

    def remove(store: LocalStore, key: ObjectKey) -> None:
        if key in locked:
            raise StoreUnavailable("The object is locked.")
        real(store, key)

    monkeypatch.setattr(LocalStore, "remove", remove)


@pytest.mark.database
def test_an_object_that_the_store_keeps_does_not_stop_the_others(
    ports: Ports, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = ports.clock.now() - timedelta(hours=2)
    rows = [make_artifact(ports, b"%d" % number, tombstoned_at=long_ago) for number in range(10)]
    oldest = rows[:7]
    Artifact.objects.filter(pk__in=[row.pk for row in oldest]).update(tombstoned_at=long_ago - timedelta(1))
    unremovable(monkeypatch, *oldest)
    for _ in range(2):  # the first ends after five failures in a row
        count = unused_artifacts.sweep(ports)
        assert count.notes == ("store: The object is locked.",)
        assert count.failed
    assert [has_object(ports, row) for row in rows] == [True] * 7 + [False] * 3


@pytest.mark.database
def test_unknown_objects_that_the_store_keeps_do_not_stop_the_listing(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = sorted(unknown(ports, b"%d" % number, age=25 * HOUR) for number in range(6))
    unremovable(monkeypatch, *(Artifact(tenant_id=key.tenant_id, sha256=key.sha256) for key in keys[:2]))
    sweep = unknown_objects.UnknownObjectsSweep(page=2)
    assert [sweep(ports).failed for _ in range(2)] == [2, 0]
    assert [one.key for one in ports.artifact_store.objects()] == keys[:2]


@pytest.mark.database
def test_an_object_is_removed_by_one_process_at_a_time(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the slower one would hit an object that was uploaded again after the faster one."""
    long_ago = ports.clock.now() - timedelta(hours=2)
    first, second = (make_artifact(ports, data, tombstoned_at=long_ago) for data in (b"1", b"2"))
    real, removed = LocalStore.remove, list[ObjectKey]()
    wanted = Wanted(second.tenant_id, second.sha256, second.bytes)

    def remove(store: LocalStore, key: ObjectKey) -> None:
        removed.append(key)
        if len(removed) == 1:  # meanwhile another process sweeps, and the other content is promised
            assert unused_artifacts.sweep(ports).looked == 0
            with pytest.raises(BeingRemoved):
                promise(wanted, store, ports.clock.now())
        real(store, key)

    monkeypatch.setattr(LocalStore, "remove", remove)
    unused_artifacts.sweep(ports)
    assert sorted(removed) == sorted([first.key, second.key])
    assert promise(wanted, ports.artifact_store, ports.clock.now()).upload is not None


@pytest.mark.database
def test_many_objects_are_removed_in_few_statements(ports: Ports) -> None:
    long_ago = ports.clock.now() - timedelta(hours=2)
    rows = [make_artifact(ports, b"%d" % number, tombstoned_at=long_ago) for number in range(60)]
    with CaptureQueriesContext(connection) as queries:
        done = removal.remove_announced(ports.artifact_store, ports.clock.now(), 100)
    assert (done.looked, done.removed) == (60, 60)
    assert {state(row) for row in rows} == {("gone", True, True)}
    for number in range(60):
        unknown(ports, b"unknown %d" % number, age=25 * HOUR)
    listed = list(ports.artifact_store.objects())
    with CaptureQueriesContext(connection) as of_unknown:
        assert removal.remove_unknown(listed, ports.artifact_store, ports.clock.now()).removed == 60
    assert len(queries) <= 12
    assert len(of_unknown) <= 16


@pytest.mark.database
def test_objects_left_over_by_a_batch_are_due_at_once(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = ports.clock.now() - timedelta(hours=2)
    rows = [make_artifact(ports, b"%d" % number, tombstoned_at=long_ago) for number in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(removal, "_BATCH_TIME", timedelta(seconds=-1))
        assert removal.remove_announced(ports.artifact_store, ports.clock.now(), 100).removed == 0
    assert {state(row) for row in rows} == {("gone", True, False)}
    assert unused_artifacts.sweep(ports).looked == 3
    assert {state(row) for row in rows} == {("gone", True, True)}


@pytest.mark.database
def test_a_batch_that_broke_off_is_removed_again_after_its_time(
    ports: Ports, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_ago = ports.clock.now() - timedelta(hours=2)
    rows = [make_artifact(ports, b"%d" % number, tombstoned_at=long_ago) for number in range(3)]
    real = LocalStore.remove

    def remove(store: LocalStore, key: ObjectKey) -> None:
        if key == rows[1].key:
            raise ZeroDivisionError
        real(store, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "remove", remove)
        with pytest.raises(ZeroDivisionError):
            unused_artifacts.sweep(ports)
    assert [state(row)[2] for row in rows] == [False, False, False]
    assert unused_artifacts.sweep(ports).looked == 0
    clock.advance(180)
    unused_artifacts.sweep(ports)
    assert [state(row)[2] for row in rows] == [True, True, True]


@pytest.mark.database
def test_the_sweep_leaves_an_object_to_the_request_that_removes_it(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_artifact(ports, b"1", expires_in=HOUR)
    real, swept = LocalStore.remove, list[int]()

    def remove(store: LocalStore, key: ObjectKey) -> None:
        if not swept:
            swept.append(unused_artifacts.sweep(ports).repaired)
        real(store, key)

    monkeypatch.setattr(LocalStore, "remove", remove)
    monkeypatch.setattr(LocalStore, "block", remove)
    removal.remove_now(row.pk, ports.artifact_store, ports.clock.now())
    assert swept == [0]
    assert state(row) == ("gone", True, True)


@pytest.mark.database
def test_the_rows_of_removed_artifacts_are_forgotten_after_the_retention_time(
    ports: Ports, clock: VirtualClock
) -> None:
    row = make_artifact(ports, b"x", tombstoned_at=ports.clock.now() - timedelta(hours=2))
    unused_artifacts.sweep(ports)
    clock.advance(settings.DISPATCHER.retention_days * 86_400 - 10)
    unused_artifacts.sweep(ports)
    assert state(row) == ("gone", True, True)
    clock.advance(20)
    unused_artifacts.sweep(ports)
    assert not Artifact.objects.exists()


@pytest.mark.parametrize("sweep", [unused_artifacts.sweep, unknown_objects.UnknownObjectsSweep()])
def test_nothing_is_removed_while_clocks_disagree(ports: Ports, clock: VirtualClock, sweep: Any) -> None:
    row = make_artifact(ports, b"x", tombstoned_at=ports.clock.now() - timedelta(hours=2))
    count = sweep(replace(ports, clock_watch=WrongClocks()))
    assert count.notes
    assert has_object(ports, row)


# -- unknown objects ---------------------------------------------------------------------------------


def unknown(ports: Ports, data: bytes, *, age: float) -> ObjectKey:
    """An object without a row."""
    key = ObjectKey(7, hashlib.sha256(data).hexdigest())
    store = ports.artifact_store
    assert isinstance(store, LocalStore)
    store.write(key, len(data), [data])
    at = ports.clock.now().timestamp() - age
    os.utime(store.root / "a" / "7" / key.sha256[:2] / key.sha256, (at, at))
    return key


def test_an_object_without_a_row_is_removed_after_a_day(ports: Ports) -> None:
    known = make_artifact(ports, b"known", expires_in=HOUR)
    os.utime(ports.artifact_store.root / "a" / "7" / known.sha256[:2] / known.sha256, (0, 0))  # type: ignore[attr-defined]
    old, young = unknown(ports, b"old", age=25 * HOUR), unknown(ports, b"young", age=23 * HOUR)
    count = unknown_objects.UnknownObjectsSweep()(ports)
    assert (count.looked, count.repaired) == (3, 1)
    kept = {one.key for one in ports.artifact_store.objects()}
    assert kept == {young, known.key}
    assert old not in kept
    assert Artifact.objects.count() == 1


@pytest.mark.database
def test_an_object_that_is_promised_meanwhile_stays(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    old = unknown(ports, b"old", age=25 * HOUR)
    listed = list(ports.artifact_store.objects())
    real = removal._Removal.remove_unknown

    def promised_first(*arguments: Any) -> None:
        make_artifact(ports, b"old", state="promised")
        real(*arguments)

    monkeypatch.setattr(removal._Removal, "remove_unknown", promised_first)
    assert removal.remove_unknown(listed, ports.artifact_store, ports.clock.now()).removed == 0
    assert ports.artifact_store.find(old) is not None


@pytest.mark.parametrize("has_ended", [False, True])
def test_what_a_long_run_has_saved_stays_until_its_end(ports: Ports, has_ended: bool) -> None:
    attempt = make_running(make_job("m"))
    saved = unknown(ports, b"first frame", age=25 * HOUR)
    RunUpload.objects.create(
        attempt=attempt,
        artifact=new_id(ports.clock.now().timestamp()),
        tenant_id=saved.tenant_id,
        sha256=saved.sha256,
        bytes=11,
        created_at=ports.clock.now() - timedelta(hours=25),
    )
    if has_ended:
        Attempt.objects.update(state=AttemptState.LOST.value, finished_at=ports.clock.now())
    unknown_objects.UnknownObjectsSweep()(ports)
    assert (ports.artifact_store.find(saved) is None) == has_ended


def test_a_listing_goes_on_where_it_ended(ports: Ports) -> None:
    for number in range(10):
        unknown(ports, b"%d" % number, age=25 * HOUR)
    sweep = unknown_objects.UnknownObjectsSweep(most=4, page=2)
    assert [sweep(ports).looked for _ in range(4)] == [4, 4, 2, 0]
    assert list(ports.artifact_store.objects()) == []


def test_unfinished_uploads_are_dropped(ports: Ports, clock: VirtualClock) -> None:
    store = ports.artifact_store
    key = ObjectKey(7, "0" * 64)
    upload = store.begin_parts(key, 10)
    sweep = unknown_objects.UnknownObjectsSweep()
    clock.advance(time.time() - clock.now().timestamp() + HOUR)
    sweep(ports)
    assert store.find_parts(key, upload.upload, 10).parts == 1
    clock.advance(25 * HOUR)
    assert sweep(ports).repaired == 1


@pytest.mark.database
def test_a_database_without_artifacts_removes_nothing(ports: Ports) -> None:
    assert not unknown_objects.UnknownObjectsSweep().is_needed(ports)
    make_artifact(ports, b"x")
    assert unknown_objects.UnknownObjectsSweep().is_needed(ports)


# -- restored databases ----------------------------------------------------------------------------


def restored(ports: Ports, *, hours_old: float | None) -> None:
    """The database is a backup of so many hours ago; None: a new one."""
    SweepRun.objects.all().delete()
    if hours_old is not None:
        at = ports.clock.now() - timedelta(hours=hours_old)
        SweepRun.objects.create(name=unknown_objects.NAME, at=at)


@pytest.mark.database
@pytest.mark.parametrize("hours_old", [50.0, None])
def test_what_was_stored_since_a_backup_stays_for_a_day_after_its_restore(
    ports: Ports, clock: VirtualClock, hours_old: float | None
) -> None:
    make_artifact(ports, b"known", expires_in=100 * HOUR)
    since, before = unknown(ports, b"since", age=40 * HOUR), unknown(ports, b"before", age=60 * HOUR)
    restored(ports, hours_old=hours_old)
    sweep = unknown_objects.UnknownObjectsSweep()
    assert sweep(ports).repaired == (0 if hours_old is None else 1)
    for _ in range(46):
        clock.advance(HOUR / 2)
        unknown_objects.UnknownObjectsSweep()(ports)  # also of other processes, and after restarts
    assert ports.artifact_store.find(since) is not None
    assert (ports.artifact_store.find(before) is None) == (hours_old is not None)
    clock.advance(1.1 * HOUR)
    sweep(ports)
    assert ports.artifact_store.find(since) is None


def test_a_dispatcher_that_stands_still_every_night_removes_what_was_stored_on_a_day(
    ports: Ports, clock: VirtualClock
) -> None:
    make_artifact(ports, b"known", expires_in=1000 * HOUR)
    sweep = unknown_objects.UnknownObjectsSweep()
    sweep(ports)
    left = unknown(ports, b"left", age=HOUR / 2)
    for _ in range(2):
        for _ in range(16):
            clock.advance(HOUR / 2)
            sweep(ports)
        clock.advance(16 * HOUR)
        sweep(ports)
    assert ports.artifact_store.find(left) is None
    assert len(sweep_ages(clock.now())) == 1


# -- many ------------------------------------------------------------------------------------------


def many(count: int, at: datetime) -> None:
    Artifact.objects.bulk_create(
        Artifact(
            id=new_id(at.timestamp()),
            tenant_id=7,
            sha256=f"{number:064x}",
            bytes=1,
            state="stored",
            created_at=at,
            expires_at=at,
        )
        for number in range(count)
    )


def test_a_run_is_bounded_and_the_next_one_goes_on(ports: Ports, clock: VirtualClock) -> None:
    many(250, clock.now())
    clock.advance(1)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        unused_artifacts.sweep(ports, most=100)
    assert len(queries) < 20
    assert Artifact.objects.exclude(tombstoned_at=None).count() == 100
    for _ in range(2):
        unused_artifacts.sweep(ports, most=100)
    assert Artifact.objects.exclude(tombstoned_at=None).count() == 250


@pytest.mark.database
def test_changes_of_bytes_are_merged_also_while_clocks_disagree(ports: Ports) -> None:
    for data in (b"a", b"bb", b"ccc"):
        make_artifact(ports, data)
    wrong = replace(ports, clock_watch=WrongClocks())
    unused_artifacts.sweep(wrong)
    assert ByteChange.objects.get().bytes == 6
    Artifact.objects.all().delete()
    assert unused_artifacts.is_needed(ports)
    unused_artifacts.sweep(wrong)
    assert not unused_artifacts.is_needed(ports), "nothing is left of a tenant without artifacts"
