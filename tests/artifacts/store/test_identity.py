"""A process works with the folder that is the store of its database, and with no other one."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connections, transaction

from artifacts.checks import check_folder
from artifacts.keys import ObjectKey
from artifacts.models import Artifact, StoreFolder
from artifacts.removal import remove_announced
from artifacts.store.configured import make_store
from artifacts.store.contract import StoreFull, StoreUnavailable
from artifacts.store.folder import Folder
from artifacts.store.identity import MARKER, REFUSAL_SECONDS, AnotherFolder, FolderIdentity
from artifacts.store.local import LocalStore
from foundation.ids import new_id
from tests.support.store_folders import MemoryRecord, failing, files

DATA = b"of one host"
TENANT = 7
THEIRS = "01M8MVN3E4780P0MH36TWZ3884"
OURS = "01M8MVN3E4780P0MH36TWZ3885"
LONG_AGO = datetime.now(UTC) - timedelta(days=30)


def key_of(data: bytes) -> ObjectKey:
    return ObjectKey(TENANT, hashlib.sha256(data).hexdigest())


class Hosts:
    """Stores of processes on several hosts, each with a folder at the same path of its own disk."""

    def __init__(self, disks: Path, settings: Any) -> None:
        self._disks, self._settings = disks, settings
        settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)

    def folder(self, host: str) -> Path:
        return self._disks / host / "artifacts"

    def store(self, host: str) -> LocalStore:
        """The store of a new process."""
        self._settings.ARTIFACT_FOLDER = self.folder(host)
        store = make_store(lambda: datetime.now(UTC))
        assert isinstance(store, LocalStore)
        return store


@pytest.fixture
def hosts(tmp_path: Path, settings: Any) -> Hosts:
    return Hosts(tmp_path, settings)


def artifact(store: LocalStore, data: bytes = DATA) -> Artifact:
    """An expired artifact in the store, whose removal is due."""
    store.write(key_of(data), len(data), [data])
    return Artifact.objects.create(
        id=new_id(),
        tenant_id=TENANT,
        sha256=key_of(data).sha256,
        bytes=len(data),
        state="stored",
        created_at=LONG_AGO,
        stored_at=LONG_AGO,
        expires_at=LONG_AGO,
        put_until=LONG_AGO,
        tombstoned_at=LONG_AGO,
    )


def refuses_all(store: LocalStore) -> None:
    key, other = key_of(DATA), key_of(b"other")
    for attempt in (
        lambda: store.write(other, 5, [b"other"]),
        lambda: store.receive(other, 5),
        lambda: store.begin_parts(other, 5),
        lambda: store.receive_part(other, "A" * 26, 1, 5),
        lambda: store.complete_parts(other, "A" * 26, 5),
        lambda: store.abandon_parts(other, "A" * 26),
        lambda: store.block(key),
        lambda: store.remove(key),
        lambda: store.drop_unfinished(datetime.now(UTC)),
        lambda: list(store.objects()),
        lambda: store.find(other),
        lambda: store.read(other, 0, 1),
        store.require_own,
    ):
        with pytest.raises(AnotherFolder):
            attempt()


@pytest.mark.database
@pytest.mark.django_db
def test_another_hosts_folder_takes_nothing_and_loses_nothing(hosts: Hosts) -> None:
    first = hosts.store("box-0")
    row = artifact(first)
    second = hosts.store("box-1")
    refuses_all(second)
    removed = remove_announced(second, datetime.now(UTC), 10)
    assert (removed.removed, "another host" in removed.fault) == (0, True)
    row.refresh_from_db()
    assert (row.state, row.removed_at) == ("stored", None), "a sweep there does not take it for removed"
    assert not hosts.folder("box-1").exists()
    assert first.read(row.key, 0, 100) == DATA
    assert remove_announced(first, datetime.now(UTC), 10).removed == 1
    assert files(first) == [MARKER]


@pytest.mark.django_db
def test_a_folder_of_another_dispatcher_stays_as_it_is(hosts: Hosts) -> None:
    theirs = hosts.store("theirs")
    artifact(theirs)
    Artifact.objects.all().delete()
    StoreFolder.objects.all().delete()
    artifact(hosts.store("ours"), b"ours")
    wrong = hosts.store("theirs")
    before = files(wrong)
    refuses_all(wrong)
    assert files(wrong) == before
    assert "of another host or dispatcher" in wrong.check()
    assert "s3://BUCKET" in wrong.check()


@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("has_marker", [True, False])
def test_a_new_database_takes_no_folder_with_files(hosts: Hosts, has_marker: bool) -> None:
    """Its sweeps would remove them, and a tenant that knows a hash would get the file."""
    theirs = hosts.store("box-0")
    artifact(theirs)
    Artifact.objects.all().delete()
    StoreFolder.objects.all().delete()
    if not has_marker:
        (theirs.root / MARKER).unlink()
    before, ours = files(theirs), hosts.store("box-0")
    refuses_all(ours)
    assert (files(ours), StoreFolder.objects.exists()) == (before, False)
    assert "files of another database" in ours.check()
    ours.declare()
    hosts.store("box-0").write(key_of(b"new"), 3, [b"new"])
    assert hosts.store("box-0").check() == ""


def test_an_upload_reads_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path, "", lambda: datetime.now(UTC), record=MemoryRecord())
    store.write(key_of(DATA), len(DATA), [DATA])
    opened, real = list[str](), Folder.open
    monkeypatch.setattr(Folder, "open", lambda self, place: (opened.append(place[-1]), real(self, place))[1])
    store.write(key_of(b"new"), 3, [b"new"])
    assert opened == [MARKER]


def test_the_first_object_of_another_process_is_not_taken_for_a_foreign_one(tmp_path: Path) -> None:
    class Raced(MemoryRecord):
        is_first = True

        def newest_objects(self, most: int) -> Sequence[ObjectKey]:
            is_first, self.is_first = self.is_first, False
            if is_first:  # the row was read before
                other.write(key_of(DATA), len(DATA), [DATA])
            return ()

    record = Raced()
    other = LocalStore(tmp_path, "", lambda: datetime.now(UTC), record=record)
    FolderIdentity(Folder(tmp_path), record).require(may_begin=True)
    assert (tmp_path / MARKER).read_text().strip() == record.folder_id


@pytest.mark.django_db
def test_a_copy_of_the_folder_is_the_store_on_a_new_host(hosts: Hosts) -> None:
    row = artifact(hosts.store("box-0"))
    shutil.copytree(hosts.folder("box-0"), hosts.folder("box-1"))
    new = hosts.store("box-1")
    assert new.read(row.key, 0, 100) == DATA
    new.write(key_of(b"new"), 3, [b"new"])
    assert [one.key for one in new.objects()] == sorted([row.key, key_of(b"new")], key=str)
    assert new.check() == ""


@pytest.mark.django_db
def test_a_folder_of_an_earlier_version_is_known_by_its_objects(hosts: Hosts) -> None:
    row = artifact(hosts.store("box-0"))
    (hosts.folder("box-0") / MARKER).unlink()
    StoreFolder.objects.all().delete()
    other = hosts.store("box-1")
    (hosts.folder("box-1") / "tmp").mkdir(parents=True)
    refuses_all(other)
    assert not StoreFolder.objects.exists()
    store = hosts.store("box-0")
    assert [one.key for one in store.objects()] == [row.key]
    assert (hosts.folder("box-0") / MARKER).read_text().strip() == StoreFolder.objects.get().folder


@pytest.mark.django_db
@pytest.mark.parametrize("planted", [None, "", THEIRS], ids=["new", "empty file", "theirs"])
@pytest.mark.parametrize("is_known", [True, False], ids=["in use", "of an earlier version"])
def test_the_command_that_doctor_prints_declares_a_new_store(
    hosts: Hosts, is_known: bool, planted: str | None
) -> None:
    row = artifact(hosts.store("lost"))
    if not is_known:
        StoreFolder.objects.all().delete()
    if planted is not None:
        marker = hosts.folder("new box") / MARKER
        marker.parent.mkdir(parents=True)
        marker.write_text(planted)
    store = hosts.store("new box")
    with pytest.raises(AnotherFolder):
        store.write(key_of(b"new"), 3, [b"new"])
    _, _, command = store.check().partition("manage.py ")
    call_command(*command.split())
    store = hosts.store("new box")
    assert store.check() == ""
    store.write(key_of(b"new"), 3, [b"new"])
    assert store.find(row.key) is None, "it is lost, and may be sent again"


@pytest.mark.django_db
def test_looking_makes_no_store(hosts: Hosts) -> None:
    store = hosts.store("box-1")
    assert (list(store.objects()), store.find(key_of(DATA)), store.check()) == ([], None, "")
    assert check_folder(None, ["default"]) == []
    assert not StoreFolder.objects.exists()
    assert not hosts.folder("box-1").parent.exists()
    artifact(hosts.store("box-0"))
    with pytest.raises(AnotherFolder):
        store.require_own()


@pytest.mark.django_db
def test_a_check_adopts_no_folder_of_an_earlier_version(hosts: Hosts) -> None:
    """`doctor` and `manage.py check` may run as root, whose files services can't read."""
    store = hosts.store("box-0")
    artifact(store)
    StoreFolder.objects.all().delete()
    for name in (MARKER, "tmp"):
        path = store.root / name
        path.rmdir() if path.is_dir() else path.unlink()
    before = sorted(store.root.rglob("*"))
    assert (store.check(), check_folder(None, ["default"])) == ("", [])
    assert sorted(store.root.rglob("*")) == before
    assert not StoreFolder.objects.exists()


@pytest.mark.django_db
def test_a_check_names_a_folder_that_cannot_be_written(hosts: Hosts) -> None:
    hosts.folder("box-0").parent.mkdir()
    hosts.folder("box-0").write_text("a file in its place")
    assert "can't be written" in hosts.store("box-0").check()


@pytest.mark.django_db
@pytest.mark.parametrize("planted", [THEIRS, ""], ids=["theirs", "none"])
def test_a_folder_with_none_of_the_newest_objects_is_not_adopted(hosts: Hosts, planted: str) -> None:
    """After the restore of a database that knew objects and no folder."""
    artifact(hosts.store("box-0"))
    StoreFolder.objects.all().delete()
    marker = hosts.folder("box-1") / MARKER
    marker.parent.mkdir(parents=True)
    if planted:
        marker.write_text(planted)
    refuses_all(hosts.store("box-1"))
    assert not StoreFolder.objects.exists()
    assert marker.exists() == bool(planted)


@pytest.mark.django_db
def test_a_file_without_an_id_begins_no_store(hosts: Hosts) -> None:
    store = hosts.store("box-0")
    store.root.mkdir(parents=True)
    (store.root / MARKER).write_text(THEIRS[:-1])
    with pytest.raises(AnotherFolder, match="without a valid id"):
        store.write(key_of(DATA), len(DATA), [DATA])
    assert "artifacts declare" in store.check()
    assert not StoreFolder.objects.exists()
    call_command("artifacts", "declare")
    artifact(store)


@pytest.mark.database
@pytest.mark.django_db
def test_the_database_takes_no_empty_id() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        StoreFolder.objects.create(folder="")


class Clock:
    """A monotonic time that stands still. at_look: called at each look at it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at_look = lambda: None

    def __call__(self) -> float:
        self.at_look()
        return self.now


@pytest.mark.parametrize("planted", ["", "not an id", "a link"])
def test_no_empty_id_is_stored(tmp_path: Path, planted: str) -> None:
    marker = tmp_path / MARKER
    if planted == "a link":
        marker.symlink_to(tmp_path / "elsewhere")
    else:
        marker.write_text(planted)
    record, clock = MemoryRecord(), Clock()
    clock.at_look = lambda: setattr(clock, "now", clock.now + 1)
    identity = FolderIdentity(Folder(tmp_path), record, clock)
    with pytest.raises(AnotherFolder, match="without a valid id"):
        identity.require(may_begin=True)
    assert record.folder_id == ""
    with pytest.raises(AnotherFolder, match="without a valid id"):
        identity.look()


def test_a_process_that_looks_while_another_one_begins_is_not_refused(tmp_path: Path) -> None:
    record = MemoryRecord()
    other = FolderIdentity(Folder(tmp_path), record)
    record.before_read = lambda: other.require(may_begin=True)
    FolderIdentity(Folder(tmp_path), record).require(may_begin=True)
    assert record.folder_id == (tmp_path / MARKER).read_text().strip()
    looking = FolderIdentity(Folder(tmp_path / "later"), later := MemoryRecord())
    later.before_read = lambda: FolderIdentity(Folder(tmp_path / "later"), later).require(may_begin=True)
    looking.look()


@pytest.mark.parametrize("is_own", [True, False])
def test_the_loser_of_the_first_race_removes_its_own_file(tmp_path: Path, is_own: bool) -> None:
    class Raced(MemoryRecord):
        def write(self, folder_id: str) -> str:
            return super().write(OURS)

    if not is_own:
        (tmp_path / MARKER).write_text(THEIRS)
    with pytest.raises(AnotherFolder):
        FolderIdentity(Folder(tmp_path), Raced()).require(may_begin=True)
    assert (tmp_path / MARKER).exists() != is_own


def test_a_refusal_is_repeated_for_a_moment_without_the_database(tmp_path: Path) -> None:
    record, clock = MemoryRecord(OURS), Clock()
    identity = FolderIdentity(Folder(tmp_path), record, clock)
    for _ in range(3):
        with pytest.raises(AnotherFolder, match="is its disk mounted"):
            identity.require()
    assert record.reads == 1
    clock.now += REFUSAL_SECONDS
    with pytest.raises(AnotherFolder):
        identity.require()
    assert record.reads == 2
    (tmp_path / MARKER).write_text(OURS)
    identity.require()


def test_without_hard_links_no_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes the file between two steps of this one."""
    folder, record = Folder(tmp_path), MemoryRecord()

    def link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "no hard links")

    real = os.open

    def opened(path: Any, flags: int, *given: Any, **named: Any) -> int:
        if path == MARKER and flags & os.O_CREAT:
            (tmp_path / MARKER).write_text(THEIRS)
        return real(path, flags, *given, **named)

    def rename(*_: Any, **__: Any) -> None:
        raise AssertionError("a rename replaces the file of another process")

    for name, call in (("link", link), ("open", opened), ("rename", rename)):
        monkeypatch.setattr(os, name, call)
    FolderIdentity(folder, record).require(may_begin=True)
    assert (record.folder_id, (tmp_path / MARKER).read_text()) == (THEIRS, THEIRS)


def test_a_file_that_another_process_is_writing_is_waited_for(tmp_path: Path) -> None:
    record, clock = MemoryRecord(), Clock()
    (tmp_path / MARKER).touch()
    clock.at_look = lambda: (tmp_path / MARKER).write_text(THEIRS) and None
    FolderIdentity(Folder(tmp_path), record, clock).require(may_begin=True)
    assert record.folder_id == THEIRS


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_without_hard_links_a_failed_copy_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(error, os.strerror(error))

    record = MemoryRecord()
    with failing(monkeypatch, "link", errno.EPERM), monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", fail)
        with pytest.raises(StoreFull if error == errno.ENOSPC else StoreUnavailable):
            FolderIdentity(Folder(tmp_path), record).require(may_begin=True)
    assert (record.folder_id, [path.name for path in tmp_path.rglob("*")]) == ("", ["tmp"])


@pytest.mark.django_db
@pytest.mark.parametrize("planted", ["", "not an id", THEIRS, "a link"])
def test_a_file_with_another_id_is_not_taken(hosts: Hosts, planted: str) -> None:
    artifact(hosts.store("box-0"))
    marker = hosts.folder("box-1") / MARKER
    marker.parent.mkdir(parents=True)
    if planted == "a link":
        marker.symlink_to(hosts.folder("box-0") / MARKER)
    else:
        marker.write_text(planted)
    refuses_all(hosts.store("box-1"))


@pytest.mark.django_db
def test_without_hard_links_a_store_begins_too(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    with failing(monkeypatch, "link", errno.EPERM):
        artifact(hosts.store("box-0"))
    assert (hosts.folder("box-0") / MARKER).read_text().strip() == StoreFolder.objects.get().folder


@pytest.mark.django_db
@pytest.mark.parametrize("step", ["open", "mkdir", "link", "fsync"])
def test_a_full_disk_begins_no_store(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    store = hosts.store("box-0")
    with failing(monkeypatch, step, errno.ENOSPC), pytest.raises(StoreFull):
        store.write(key_of(DATA), len(DATA), [DATA])
    assert [name for name in files(store) if name != MARKER] == []
    artifact(store)
    assert StoreFolder.objects.count() == 1


@pytest.fixture
def closed_connections() -> Iterator[None]:
    yield
    connections.close_all()


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("has_links", [True, False], ids=["", "no hard links"])
@pytest.mark.parametrize("folders", [1, 2])
def test_processes_that_begin_at_once_agree_on_one_folder(
    hosts: Hosts,
    folders: int,
    has_links: bool,
    closed_connections: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = [hosts.store(f"box-{number % folders}") for number in range(6)]
    begin = threading.Barrier(len(stores))
    refused: list[LocalStore] = []

    def write(number: int) -> None:
        data = f"file {number}".encode()
        begin.wait()
        try:
            stores[number].write(key_of(data), len(data), [data])
        except StoreUnavailable:
            refused.append(stores[number])
        finally:
            connections.close_all()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(stores))]
    with ExitStack() as stack:
        if not has_links:
            stack.enter_context(failing(monkeypatch, "link", errno.EPERM))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    folder_id = StoreFolder.objects.get().folder
    own = {store.root for store in stores if (store.root / MARKER).exists()}
    assert [(root / MARKER).read_text().strip() for root in own] == [folder_id]
    assert {store.root for store in refused} == {store.root for store in stores} - own


@pytest.mark.django_db
def test_the_check_of_the_settings_says_so(hosts: Hosts, settings: Any) -> None:
    store = hosts.store("box-0")
    assert check_folder(None, ["default"]) == []
    artifact(store)
    assert check_folder(None, ["default"]) == []
    hosts.store("box-1")
    [warning] = check_folder(None, ["default"])
    assert "is the store on another host" in warning.msg
    assert "s3://BUCKET" in str(warning.hint)
    assert check_folder(None) == [], "without a database"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_store="s3://films")
    assert check_folder(None, ["default"]) == []
