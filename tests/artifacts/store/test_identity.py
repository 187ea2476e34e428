"""A process works with the folder that is the store of its database, and with no other one."""

from __future__ import annotations

import errno
import hashlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from artifacts.checks import check_folder
from artifacts.keys import ObjectKey
from artifacts.models import Artifact, StoreFolder
from artifacts.removal import remove_announced
from artifacts.store.configured import make_store
from artifacts.store.contract import StoreFull, StoreUnavailable
from artifacts.store.identity import MARKER, AnotherFolder
from artifacts.store.local import LocalStore
from foundation.ids import new_id
from tests.support.store_folders import failing, files

DATA = b"of one host"
TENANT = 7
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
@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "in use"])
def test_the_command_that_doctor_prints_declares_a_new_store(hosts: Hosts, is_restored: bool) -> None:
    """`restore` lets the database forget its folder."""
    row = artifact(hosts.store("lost"))
    if is_restored:
        StoreFolder.objects.all().delete()
    store = hosts.store("new box")
    with pytest.raises(AnotherFolder, match="is its disk mounted"):
        store.write(key_of(b"new"), 3, [b"new"])
    _, _, command = store.check().partition("the services, by: ")
    subprocess.run(command, shell=True, check=True)
    assert store.check() == ""
    store.write(key_of(b"new"), 3, [b"new"])
    assert store.find(row.key) is None, "it is lost, and may be sent again"


@pytest.mark.django_db
def test_looking_makes_no_store(hosts: Hosts) -> None:
    store = hosts.store("box-1")
    assert (list(store.objects()), store.find(key_of(DATA)), store.check()) == ([], None, "")
    assert not StoreFolder.objects.exists()
    artifact(hosts.store("box-0"))
    with pytest.raises(AnotherFolder):
        store.require_own()


@pytest.mark.django_db
@pytest.mark.parametrize("planted", ["", "not an id", "01M8MVN3E4780P0MH36TWZ3884", "a link"])
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
@pytest.mark.parametrize("folders", [1, 2])
def test_processes_that_begin_at_once_agree_on_one_folder(
    hosts: Hosts, folders: int, closed_connections: None
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
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder_id = StoreFolder.objects.get().folder
    own = {store.root for store in stores if (store.root / MARKER).read_text().strip() == folder_id}
    assert len(own) == 1
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
