"""Parts that are written at their place of one file, which becomes the object: what must not go wrong."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artifacts.store import folder
from artifacts.store.contract import (
    NoSuchObject,
    ObjectExists,
    PartBusy,
    StoreFull,
    UploadInParts,
    WrongBytes,
    size_of_part,
)
from artifacts.store.local import LocalStore
from artifacts.store.parts import PartReceiver
from foundation.program import ROOT
from tests.artifacts.store import killed_uploads
from tests.support.store_folders import failing, files
from tests.support.store_objects import key_of
from tests.support.stores import Stage
from tests.support.waiting import wait_for

DATA = os.urandom(250)
KEY = key_of(DATA)
OBJECT = f"a/7/{KEY.sha256[:2]}/{KEY.sha256}"
LATER = timedelta(hours=1)


def new_store(root: Path, *, is_shared: bool = False, reserve_bytes: int = 0) -> LocalStore:
    return LocalStore(
        root,
        "http://x",
        lambda: datetime.now(UTC),
        is_shared=is_shared,
        reserve_bytes=reserve_bytes,
        part_bytes=killed_uploads.PART_BYTES,
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return new_store(tmp_path / "store")


def part(number: int, data: bytes = DATA) -> bytes:
    return data[(number - 1) * 100 : number * 100]


def put(store: LocalStore, upload: UploadInParts, *numbers: int, data: bytes = DATA) -> None:
    for number in numbers:
        size = size_of_part(len(DATA), 100, number)
        with store.receive_part(KEY, upload.upload, number, size) as receiver:
            receiver.add(part(number, data))
            receiver.finish()


def begun(store: LocalStore, *numbers: int) -> UploadInParts:
    """An upload of three parts, of which these are stored."""
    upload = store.begin_parts(KEY, len(DATA))
    put(store, upload, *numbers)
    return upload


def stored(store: LocalStore, upload: UploadInParts) -> set[int]:
    return set(store.find_parts(KEY, upload.upload, len(DATA)).stored)


def complete(store: LocalStore, upload: UploadInParts) -> None:
    store.complete_parts(KEY, upload.upload, len(DATA))


def test_the_file_of_the_parts_becomes_the_object_without_a_copy(store: LocalStore) -> None:
    upload = begun(store, 3, 1, 2)
    names = ["1.stored", "100.size", "2.stored", "3.stored", "bytes", "key"]
    assert files(store) == [f"parts/{upload.upload}/{name}" for name in names]
    inode = (store.root / "parts" / upload.upload / "bytes").stat().st_ino
    complete(store, upload)
    assert files(store) == [OBJECT]
    assert (store.root / OBJECT).stat().st_ino == inode
    assert b"".join(store.chunks(KEY)) == DATA


def test_an_object_is_as_old_as_its_completion(store: LocalStore) -> None:
    """The sweep of unknown objects goes by this age."""
    upload = begun(store, 1, 2, 3)
    os.utime(store.root / "parts" / upload.upload / "bytes", (0, 0))
    complete(store, upload)
    found = store.find(KEY)
    assert found is not None
    assert found.stored_at > datetime.now(UTC) - LATER


# -- requests at once ---------------------------------------------------------------------------------


def test_a_part_has_one_writer_at_a_time(store: LocalStore) -> None:
    upload = begun(store)
    with store.receive_part(KEY, upload.upload, 1, 100) as first:
        first.add(DATA[:50])
        with pytest.raises(PartBusy):
            store.receive_part(KEY, upload.upload, 1, 100)
        put(store, upload, 2)  # another part is free
        assert stored(store, upload) == {2}
        with pytest.raises(NoSuchObject, match="2 of 3 parts"):
            complete(store, upload)
        first.add(DATA[50:100])
        first.finish()
    put(store, upload, 1, 3)
    complete(store, upload)
    assert b"".join(store.chunks(KEY)) == DATA


def test_a_part_has_one_writer_also_where_the_one_before_ends_meanwhile(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = begun(store)
    before = store.receive_part(KEY, upload.upload, 1, 100)
    real = fcntl.flock

    def locked(*given: Any) -> None:
        before.close()  # between the open and the lock of the next one
        real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", locked)
        receiver = store.receive_part(KEY, upload.upload, 1, 100)
    with receiver, pytest.raises(PartBusy):
        store.receive_part(KEY, upload.upload, 1, 100)


def test_a_second_request_for_a_part_gets_a_retry_after(local_stage: Stage) -> None:
    store = local_stage.store
    assert isinstance(store, LocalStore)
    store.part_bytes = killed_uploads.PART_BYTES
    upload = begun(store)
    signed = store.sign_part(KEY, upload.upload, 1, 100, 60)
    with store.receive_part(KEY, upload.upload, 1, 100):
        answer = local_stage.send(signed, part(1))
        assert (answer.status_code, answer.json()["code"]) == (503, "artifact_part_busy")
        assert answer.headers["Retry-After"] == "2"
    assert local_stage.send(signed, part(1)).status_code == 200


def test_a_stored_part_is_never_written_again(store: LocalStore) -> None:
    upload = begun(store, 1)
    put(store, upload, 1, data=bytes(250))
    receiver = store.receive_part(KEY, upload.upload, 1, 100)
    receiver.add(bytes(50))  # and is interrupted
    receiver.close()
    assert stored(store, upload) == {1}
    put(store, upload, 2, 3)
    late = store.receive_part(KEY, upload.upload, 2, 100)
    complete(store, upload)
    late.add(bytes(100))
    late.finish()
    late.close()
    assert b"".join(store.chunks(KEY)) == DATA
    assert files(store) == [OBJECT]


def test_a_request_that_opened_the_file_before_it_became_the_object_does_not_write(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = begun(store, 1, 2, 3)
    real = PartReceiver._has

    def has(self: PartReceiver, name: str) -> bool:
        monkeypatch.undo()
        complete(store, upload)
        return real(self, name)

    monkeypatch.setattr(PartReceiver, "_has", has)
    with pytest.raises(ObjectExists), store.receive_part(KEY, upload.upload, 1, 100) as receiver:
        receiver.add(bytes(100))
    assert b"".join(store.chunks(KEY)) == DATA
    with pytest.raises(ObjectExists):
        store.receive_part(KEY, upload.upload, 1, 100)


def test_two_completions_at_once_both_succeed(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = begun(store, 1, 2, 3)
    real = hashlib.sha256

    def hashed(*given: bytes) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(hashlib, "sha256", real)
            if store.find(KEY) is None:
                complete(store, upload)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "sha256", hashed)
        complete(store, upload)
    assert b"".join(store.chunks(KEY)) == DATA
    assert files(store) == [OBJECT]


def test_an_object_that_was_erased_during_the_check_stays_erased(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = begun(store, 1, 2, 3)
    real = hashlib.sha256

    def hashed(*given: bytes) -> Any:
        monkeypatch.setattr(hashlib, "sha256", real)
        store.block(KEY)
        return real(*given)

    monkeypatch.setattr(hashlib, "sha256", hashed)
    complete(store, upload)
    with pytest.raises(NoSuchObject):
        store.open(KEY)


def test_wrong_bytes_end_the_upload_and_leave_nothing(store: LocalStore) -> None:
    upload = begun(store, 1, 3)
    put(store, upload, 2, data=bytes(250))
    with pytest.raises(WrongBytes):
        complete(store, upload)
    assert files(store) == []
    with pytest.raises(NoSuchObject):
        store.find_parts(KEY, upload.upload, len(DATA))


@pytest.mark.parametrize(("number", "size"), [(1, 99), (3, 100), (4, 50)])
def test_a_part_does_not_reach_beyond_its_place(store: LocalStore, number: int, size: int) -> None:
    upload = begun(store)
    with pytest.raises((WrongBytes, NoSuchObject)):
        store.receive_part(KEY, upload.upload, number, size)
    with store.receive_part(KEY, upload.upload, 1, 100) as receiver, pytest.raises(WrongBytes):
        receiver.add(bytes(101))
    assert stored(store, upload) == set()


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_upload_keeps_the_size_of_its_parts_when_the_setting_changes(
    tmp_path: Path, is_shared: bool
) -> None:
    sizes = {}
    for part_bytes in (100, 50, 200):
        changed = LocalStore(
            tmp_path, "http://x", lambda: datetime.now(UTC), is_shared=is_shared, part_bytes=part_bytes
        )
        if not sizes:
            upload = begun(changed, 1)
        found = changed.find_parts(KEY, upload.upload, len(DATA))
        sizes[part_bytes] = (found.part_bytes, found.parts, set(found.stored))
        if part_bytes == 50:
            put(changed, upload, 2, 3)
    assert sizes == {100: (100, 3, {1}), 50: (100, 3, {1}), 200: (100, 3, {1, 2, 3})}
    complete(changed, upload)


def test_the_parts_of_an_earlier_versions_upload_have_its_size(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, "http://x", lambda: datetime.now(UTC), part_bytes=100)
    upload = begun(store)
    (tmp_path / "parts" / upload.upload / "100.size").unlink()
    assert store.find_parts(KEY, upload.upload, len(DATA)).part_bytes == 64 * 1024**2


def test_the_number_of_parts_is_bounded(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, "http://x", lambda: datetime.now(UTC), part_bytes=100)
    for size, parts, part_bytes in ((1_000_000, 10_000, 100), (1_000_001, 1, 1024**2)):
        upload = store.begin_parts(KEY, size)
        assert (upload.parts, upload.part_bytes) == (parts, part_bytes)
        assert store.find_parts(KEY, upload.upload, size) == upload


# -- interruptions ------------------------------------------------------------------------------------


def test_an_interrupted_part_is_not_stored(store: LocalStore) -> None:
    upload = begun(store, 2)
    with store.receive_part(KEY, upload.upload, 1, 100) as receiver:
        receiver.add(DATA[:99])
        with pytest.raises(WrongBytes):
            receiver.finish()
    names = ("100.size", "2.stored", "bytes", "key")
    assert files(store) == [f"parts/{upload.upload}/{name}" for name in names]
    put(store, upload, 1, 3)
    complete(store, upload)


def test_a_broken_connection_frees_its_part(local_stage: Stage) -> None:
    import socket
    from urllib.parse import urlsplit

    store = local_stage.store
    assert isinstance(store, LocalStore)
    store.part_bytes = killed_uploads.PART_BYTES
    upload = begun(store)
    signed = store.sign_part(KEY, upload.upload, 1, 100, 60)
    url = urlsplit(signed.url)
    claim = f"parts/{upload.upload}/1.open"
    with socket.create_connection((str(url.hostname), int(url.port or 0))) as connection:
        head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head.encode() + bytes(50))
        wait_for(lambda: claim in files(store))
    wait_for(lambda: claim not in files(store))
    assert stored(store, upload) == set()
    assert local_stage.send(signed, part(1)).status_code == 200


def test_a_process_may_be_killed_between_any_two_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", killed_uploads.__name__, str(tmp_path), DATA.hex()]
    steps = int(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    assert steps > 30
    for step in range(1, steps + 1):
        store = new_store(tmp_path / str(step))
        uploads = [path.name for path in store.root.glob("parts/*") if (path / "key").exists()]
        found = store.find(KEY)
        if found is None and uploads:
            upload = UploadInParts(uploads[0], 100, 3)
            put(store, upload, *({1, 2, 3} - stored(store, upload)))
            complete(store, upload)
        elif uploads:
            complete(store, UploadInParts(uploads[0], 100, 3))
        elif found is None:
            complete(store, begun(store, 1, 2, 3))
        assert b"".join(store.chunks(KEY)) == DATA, step
        store.drop_unfinished(datetime.now(UTC) + LATER)
        assert files(store) == [OBJECT], step


def test_an_upload_abandoned_while_a_part_arrives_leaves_nothing(store: LocalStore) -> None:
    upload = begun(store, 2)
    with store.receive_part(KEY, upload.upload, 1, 100) as receiver:
        receiver.add(DATA[:50])
        store.abandon_parts(KEY, upload.upload)
        receiver.add(DATA[50:100])
        with pytest.raises(NoSuchObject):
            receiver.finish()
    assert files(store) == []
    assert store.drop_unfinished(datetime.now(UTC) + LATER) == 0


@pytest.mark.parametrize("step", ["open", "pwrite", "fsync", "rename"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_a_part_that_is_sent_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, step: str, error: int
) -> None:
    upload = begun(store, 2)
    with failing(monkeypatch, step, error), pytest.raises(StoreFull):
        put(store, upload, 1)
    assert stored(store, upload) == {2}
    put(store, upload, 1, 3)
    complete(store, upload)
    assert b"".join(store.chunks(KEY)) == DATA


@pytest.mark.parametrize("step", ["open", "ftruncate", "fsync", "rename", "mkdir"])
def test_a_full_disk_begins_no_upload(store: LocalStore, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    with failing(monkeypatch, step, errno.ENOSPC), pytest.raises(StoreFull):
        store.begin_parts(KEY, len(DATA))
    assert files(store) == []


def test_parts_leave_the_room_free_that_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path / "store", reserve_bytes=1000)
    monkeypatch.setattr(folder.Folder, "free_bytes", lambda self, file=None: 1250)
    upload = begun(store)
    with store.receive_part(KEY, upload.upload, 1, 100) as receiver:
        monkeypatch.setattr(folder.Folder, "free_bytes", lambda self, file=None: 1099)
        with pytest.raises(StoreFull):
            receiver.add(DATA[:100])
    with pytest.raises(StoreFull):
        store.receive_part(KEY, upload.upload, 1, 100)
    assert stored(store, upload) == set()


# -- links --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bytes", "1.open"])
def test_a_part_is_not_written_through_a_planted_link(store: LocalStore, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(bytes(250))
    upload = begun(store)
    link = store.root / "parts" / upload.upload / name
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    with pytest.raises(NoSuchObject):
        put(store, upload, 1)
    assert target.read_bytes() == bytes(250)


@pytest.mark.parametrize("level", ["parts", "upload"])
def test_a_planted_link_to_a_folder_takes_no_part(store: LocalStore, tmp_path: Path, level: str) -> None:
    upload = begun(store, 1)
    folder = store.root / "parts" if level == "parts" else store.root / "parts" / upload.upload
    elsewhere = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    for attempt in (lambda: put(store, upload, 2), lambda: complete(store, upload)):
        with pytest.raises(NoSuchObject):
            attempt()
    store.abandon_parts(KEY, upload.upload)
    store.drop_unfinished(datetime.now(UTC) + LATER)
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


def test_a_planted_link_does_not_become_the_object(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = begun(store, 1, 2, 3)
    target = tmp_path / "target"
    target.write_bytes(DATA)
    real = hashlib.sha256

    def hashed(*given: bytes) -> Any:
        link = store.root / "parts" / upload.upload / "bytes"
        link.unlink()
        link.symlink_to(target)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "sha256", hashed)
        with pytest.raises(NoSuchObject):
            complete(store, upload)
    assert not (store.root / OBJECT).is_symlink()


# -- parts that are files -----------------------------------------------------------------------------


def test_an_upload_that_an_earlier_version_began_is_continued_and_completed(store: LocalStore) -> None:
    earlier = new_store(store.root, is_shared=True)
    upload = begun(earlier, 1)
    put(store, upload, 2)
    put(earlier, upload, 3)
    assert files(store) == [f"parts/{upload.upload}/{name}" for name in ("1", "100.size", "2", "3", "key")]
    assert stored(store, upload) == {1, 2, 3}
    complete(store, upload)
    assert files(store) == [OBJECT]
    assert b"".join(store.chunks(KEY)) == DATA


def test_a_part_that_an_earlier_version_took_for_a_new_upload_is_missing(store: LocalStore) -> None:
    upload = begun(store, 1, 2)
    (store.root / "parts" / upload.upload / "3").write_bytes(part(3))
    assert stored(store, upload) == {1, 2}
    with pytest.raises(NoSuchObject, match="1 of 3 parts are missing, the first is 3"):
        complete(store, upload)
    put(store, upload, 3)
    complete(store, upload)
    assert files(store) == [OBJECT]


def test_parts_are_files_on_a_file_system_without_locks(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    upload = begun(store, 1, 2, 3)
    assert "bytes" not in {Path(name).name for name in files(store)}
    complete(store, upload)
    assert b"".join(store.chunks(KEY)) == DATA
