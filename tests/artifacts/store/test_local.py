"""What only a folder must be safe from: links, full disks, cut uploads, too many at once."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from artifacts.keys import ObjectKey
from artifacts.store import folder, receiver
from artifacts.store.contract import NoSuchObject, ObjectExists, StoreFull, StoreUnavailable
from artifacts.store.local import LocalStore
from artifacts.store.presence import find_expected
from tests.support.store_folders import MemoryRecord, failing, files
from tests.support.store_objects import DATA, KEY, key_of
from tests.support.stores import Stage
from tests.support.waiting import wait_for


@pytest.fixture
def store(local_stage: Stage) -> LocalStore:
    assert isinstance(local_stage.store, LocalStore)
    return local_stage.store


def place(store: LocalStore) -> Path:
    return store.root / "a" / "7" / KEY.sha256[:2] / KEY.sha256


# -- links -----------------------------------------------------------------------------------------


def test_a_planted_link_is_not_read(local_stage: Stage, store: LocalStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    place(store).parent.mkdir(parents=True)
    place(store).symlink_to(secret)
    answer = local_stage.send(store.sign_get(KEY, 60))
    assert (answer.status_code, b"secret" in answer.content) == (404, False)
    assert store.find(KEY) is None
    with pytest.raises(NoSuchObject):
        store.read(KEY, 0, 6)
    assert list(store.objects()) == []


def test_a_planted_link_is_replaced_by_an_upload_not_written_through(
    local_stage: Stage, store: LocalStore, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    place(store).parent.mkdir(parents=True)
    place(store).symlink_to(target)
    assert local_stage.put(KEY, DATA).status_code == 200
    assert target.read_text() == "untouched"
    assert place(store).read_bytes() == DATA
    assert not place(store).is_symlink()


@pytest.mark.parametrize(
    "level", ["a", "a/7", f"a/7/{KEY.sha256[:2]}", "tmp"], ids=["objects", "tenant", "pair", "tmp"]
)
def test_a_planted_folder_link_is_not_followed(
    local_stage: Stage, store: LocalStore, tmp_path: Path, level: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = store.root / level
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    assert local_stage.put(KEY, DATA).status_code in (404, 503)
    assert list(elsewhere.iterdir()) == []
    (elsewhere / KEY.sha256).write_bytes(b"secret")
    assert local_stage.send(store.sign_get(KEY, 60)).status_code == 404


def test_an_upload_that_was_under_way_does_not_replace_an_erased_object(store: LocalStore) -> None:
    with store.receive(KEY, len(DATA)) as receiver:
        receiver.add(DATA)
        store.block(KEY)
        with pytest.raises(ObjectExists):
            receiver.finish()
    with pytest.raises(NoSuchObject):
        store.open(KEY)
    store.write(KEY, len(DATA), [DATA])  # by the dispatcher itself, for a new artifact
    assert store.read(KEY, 0, 9) == DATA[:9]


@pytest.mark.parametrize("level", ["a", "a/7", f"a/7/{KEY.sha256[:2]}"], ids=["objects", "tenant", "pair"])
def test_nothing_is_listed_or_removed_through_a_planted_link(
    store: LocalStore, tmp_path: Path, level: str
) -> None:
    store.write(KEY, len(DATA), [DATA])
    elsewhere = (store.root / level).rename(tmp_path / "elsewhere")
    (store.root / level).symlink_to(elsewhere)
    assert list(store.objects()) == []
    store.remove(KEY)
    assert [path.name for path in elsewhere.rglob("*") if path.is_file()] == [KEY.sha256]


def test_a_planted_pipe_does_not_block(local_stage: Stage, store: LocalStore) -> None:
    place(store).parent.mkdir(parents=True)
    os.mkfifo(place(store))
    assert local_stage.send(store.sign_get(KEY, 60)).status_code == 404


# -- full disks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["open", "write", "fsync", "rename", "mkdir"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_each_step_leaves_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, step: str, error: int
) -> None:
    with failing(monkeypatch, step, error), pytest.raises(StoreFull):
        store.write(KEY, len(DATA), [DATA])
    assert files(store) == []
    store.write(KEY, len(DATA), [DATA])
    assert store.find(KEY) is not None


def test_a_broken_disk_is_unavailable(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with failing(monkeypatch, "fsync", errno.EIO), pytest.raises(StoreUnavailable):
        store.write(KEY, len(DATA), [DATA])
    assert files(store) == []


def test_a_full_disk_is_answered_with_507(local_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder.Folder, "free_bytes", lambda self, file=None: len(DATA) - 1)
    answer = local_stage.put(KEY, DATA)
    assert (answer.status_code, answer.json()["code"]) == (507, "artifact_store_full")
    assert "60" in answer.headers["Retry-After"]
    monkeypatch.undo()
    assert local_stage.put(KEY, DATA).status_code == 200


def test_some_room_stays_free(tmp_path: Path, local_stage: Stage) -> None:
    now = local_stage.store.now  # type: ignore[attr-defined]
    store = LocalStore(tmp_path / "other", "http://x", now, reserve_bytes=10**18)
    with pytest.raises(StoreFull, match=rf"{10**18} bytes stay free \(DISPATCHER_ARTIFACT_RESERVE_BYTES\)"):
        store.write(KEY, len(DATA), [DATA])
    assert "no upload is accepted" in store.check()


def test_uploads_at_once_leave_that_room_free(
    tmp_path: Path, local_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = local_stage.store.now  # type: ignore[attr-defined]
    store = LocalStore(tmp_path / "other", "http://x", now, reserve_bytes=1000)

    def free(self: folder.Folder, file: int | None = None) -> int:
        return 1100 - sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    monkeypatch.setattr(folder.Folder, "free_bytes", free)
    first, second = bytes(60), bytes([1]) * 60
    with store.receive(key_of(first), 60) as one, store.receive(key_of(second), 60) as other:
        one.add(first)
        with pytest.raises(StoreFull, match=r"1000 bytes stay free \(DISPATCHER_ARTIFACT_RESERVE_BYTES\)"):
            other.add(second)
        one.finish()
    assert files(store) == [f"a/7/{key_of(first).sha256[:2]}/{key_of(first).sha256}"]


def test_an_upload_opens_nothing_while_its_bytes_arrive(
    tmp_path: Path, local_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask for the room on the disk by a walk from the root took five calls for each MiB, after each of
    which its thread takes the interpreter."""
    now = local_stage.store.now  # type: ignore[attr-defined]
    store = LocalStore(tmp_path / "other", "http://x", now, reserve_bytes=1000)
    with store.receive(KEY, len(DATA)) as receiver:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", lambda *args, **options: pytest.fail(f"opened {args}"))
            receiver.add(DATA)
        receiver.finish()
    assert b"".join(store.chunks(KEY)) == DATA


def test_an_upload_reaches_the_disk_while_it_arrives(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the fsync at its end does not stall those of the database."""
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(receiver, "WRITEBACK_BYTES", 100)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, first, size, advice: begun.append((first, size)))
    store.write(key_of(bytes(350)), 350, [bytes(60), bytes(60), bytes(150), bytes(80)])
    assert begun == [(0, 120), (120, 150)]


# -- uploads that do not end ----------------------------------------------------------------------


@pytest.mark.parametrize("tenth", range(10))
def test_an_upload_cut_at_each_tenth_leaves_nothing(
    local_stage: Stage, store: LocalStore, tenth: int
) -> None:
    signed = urlsplit(store.sign_put(KEY, len(DATA), 60).url)
    with socket.create_connection((str(signed.hostname), int(signed.port or 0))) as connection:
        head = f"PUT {signed.path}?{signed.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(DATA)}\r\n\r\n"
        connection.sendall(head.encode() + DATA[: len(DATA) * tenth // 10])
        wait_for(lambda: any(name.startswith("tmp/") for name in files(store)))
    wait_for(lambda: files(store) == [])
    assert local_stage.put(KEY, DATA).status_code == 200


def test_a_sender_that_stops_is_refused(local_stage: Stage, store: LocalStore, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, upload_idle_seconds=0.1)
    signed = urlsplit(store.sign_put(KEY, len(DATA), 60).url)
    with socket.create_connection((str(signed.hostname), int(signed.port or 0))) as connection:
        head = f"PUT {signed.path}?{signed.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(DATA)}\r\n\r\n"
        connection.sendall(head.encode() + DATA[:10])
        assert connection.recv(12) == b"HTTP/1.1 408"
    wait_for(lambda: files(store) == [])


def test_files_of_a_killed_process_are_dropped(store: LocalStore) -> None:
    from datetime import UTC, datetime, timedelta

    receiver = store.receive(KEY, len(DATA))
    receiver.add(DATA[:10])  # and no more: the process is gone
    assert len(files(store)) == 1
    assert store.drop_unfinished(datetime.now(UTC) - timedelta(hours=1)) == 0
    assert store.drop_unfinished(datetime.now(UTC) + timedelta(hours=1)) == 1
    assert files(store) == []


# -- answers ------------------------------------------------------------------------------------------


def test_nothing_active_is_shown_inline(local_stage: Stage) -> None:
    page = b"<script>alert(1)</script>"
    local_stage.put(key_of(page), page)
    answer = local_stage.send(local_stage.store.sign_get(key_of(page), 60, content_type="text/html"))
    assert answer.headers["Content-Disposition"] == "attachment"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"


def test_a_client_that_has_the_bytes_gets_none(local_stage: Stage) -> None:
    local_stage.put(KEY, DATA)
    tag = local_stage.send(local_stage.store.sign_get(KEY, 60)).headers["ETag"]
    answer = local_stage.send(local_stage.store.sign_get(KEY, 60), If_None_Match=tag)
    assert (answer.status_code, answer.content) == (304, b"")
    several = local_stage.send(local_stage.store.sign_get(KEY, 60), If_None_Match=f'"other", W/{tag}')
    assert several.status_code == 304
    part = local_stage.send(local_stage.store.sign_get(KEY, 60), Range="bytes=0-9", If_Range=tag)
    assert part.content == DATA[:10]
    whole = local_stage.send(local_stage.store.sign_get(KEY, 60), Range="bytes=0-9", If_Range='"other"')
    assert whole.content == DATA


def test_a_head_request_has_the_length_and_no_bytes(local_stage: Stage) -> None:
    local_stage.put(KEY, DATA)
    for headers in ({}, {"Range": "bytes=0-9"}):  # RFC 9110 §14.2: only GET has ranges
        answer = local_stage.http.head(local_stage.store.sign_get(KEY, 60).url, headers=headers)
        assert (answer.status_code, answer.headers["Content-Length"]) == (200, str(len(DATA)))


@pytest.mark.parametrize(
    ("wanted", "got", "status"),
    [
        (f"bytes=299990-{'9' * 30}", DATA[299_990:], 206),
        (f"bytes=-{'9' * 30}", DATA, 206),
        (f"bytes=-{'9' * 5000}", DATA, 206),
        (f"bytes={'9' * 30}-", None, 416),
        (f"bytes={'9' * 5000}-", None, 416),
        (f"bytes={'9' * 30}-{'9' * 40}", None, 416),
        ("bytes=0-", DATA, 206),
        ("Bytes=0-2", DATA[:3], 206),
        ("bytes=0-1,5-6", DATA, 200),
        ("bytes=-", DATA, 200),
        ("bytes=٣-٥", DATA, 200),
    ],
    ids=str,
)
def test_ranges_of_any_length_are_read(
    local_stage: Stage, wanted: str, got: bytes | None, status: int
) -> None:
    local_stage.put(KEY, DATA)
    header: Any = wanted.encode()  # requests refuses texts beyond Latin-1
    answer = local_stage.send(local_stage.store.sign_get(KEY, 60), Range=header)
    assert answer.status_code == status
    assert got is None or answer.content == got
    if status != 200:
        assert answer.headers["Content-Range"].endswith("/300000")


@pytest.mark.parametrize(
    ("limits", "status"), [({"artifact_transfers": 1}, 503), ({"artifact_transfers_per_tenant": 1}, 429)]
)
def test_transfers_at_once_are_limited(
    local_stage: Stage, store: LocalStore, settings: Any, limits: Any, status: int
) -> None:
    local_stage.put(KEY, DATA)
    settings.DISPATCHER = replace(settings.DISPATCHER, **limits)
    other = key_of(b"other")
    signed = urlsplit(store.sign_put(other, 5, 60).url)
    with socket.create_connection((str(signed.hostname), int(signed.port or 0))) as connection:
        head = f"PUT {signed.path}?{signed.query} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
        connection.sendall(head.encode())
        wait_for(lambda: any(name.startswith("tmp/") for name in files(store)))
        refused = local_stage.send(store.sign_get(KEY, 60))
        assert (refused.status_code, refused.json()["code"]) == (status, "too_many_transfers")
    wait_for(lambda: local_stage.send(store.sign_get(KEY, 60)).status_code == 200)


def test_many_uploads_of_one_object_at_once_store_it_once(local_stage: Stage, store: LocalStore) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(local_stage.put(KEY, DATA).status_code))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {200, 412}
    assert 200 in answers
    assert files(store) == [f"a/7/{KEY.sha256[:2]}/{KEY.sha256}"]


def test_a_store_whose_folder_is_gone_or_not_mounted_has_lost_nothing(tmp_path: Path) -> None:
    """Else each job with a file would fail for good, and each artifact would count as removed."""
    root = tmp_path / "store"
    store = LocalStore(root, "http://x/store", lambda: datetime.now(UTC), record=MemoryRecord())
    data = b"x" * 100
    key = ObjectKey(7, hashlib.sha256(data).hexdigest())
    assert store.find(key) is None, "a new store is no outage"
    store.write(key, len(data), [data])
    os.rename(root, tmp_path / "away")
    for is_mount_point in (False, True):
        if is_mount_point:
            root.mkdir()
        with pytest.raises(StoreUnavailable):
            find_expected(store, key)
        with pytest.raises(StoreUnavailable):
            store.open(key)
    root.rmdir()
    os.rename(tmp_path / "away", root)
    assert find_expected(store, key) is not None
    store.remove(key)
    assert find_expected(store, key) is None
