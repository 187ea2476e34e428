"""What both stores do alike, seen from outside over HTTP and by the dispatcher's own calls."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from artifacts.keys import ObjectKey
from artifacts.store.contract import NoSuchObject, StoreUnavailable, WrongBytes, size_of_part
from artifacts.store.local import LocalStore
from artifacts.store.s3 import S3Store
from tests.support.file_names import NAMES
from tests.support.store_objects import DATA, KEY, key_of
from tests.support.stores import Stage

SMALL_PART = 5 * 1024 * 1024
"""S3's smallest part that is not the last."""


@pytest.fixture
def small_parts(stage: Stage) -> int:
    assert isinstance(stage.store, LocalStore | S3Store)
    stage.store.part_bytes = SMALL_PART
    return SMALL_PART


def test_an_object_that_was_put_is_read_back_whole(stage: Stage) -> None:
    assert stage.store.find(KEY) is None
    assert stage.put(KEY, DATA).status_code == 200
    found = stage.store.find(KEY)
    assert found is not None
    assert (found.key, found.bytes) == (KEY, len(DATA))
    assert abs(datetime.now(UTC) - found.stored_at) < timedelta(minutes=1)
    answer = stage.send(stage.store.sign_get(KEY, 60.0, content_type="image/png"))
    assert answer.content == DATA
    assert answer.headers["Content-Type"] == "image/png"
    assert b"".join(stage.store.chunks(KEY)) == DATA


def test_an_empty_object_is_stored(stage: Stage) -> None:
    key = key_of(b"")
    assert stage.put(key, b"").status_code == 200
    assert stage.send(stage.store.sign_get(key, 60.0)).content == b""
    assert stage.store.read(key, 0, 100) == b""


def test_an_object_is_created_once(stage: Stage) -> None:
    assert stage.put(KEY, DATA).status_code == 200
    assert stage.put(KEY, DATA).status_code == 412
    assert stage.send(stage.store.sign_get(KEY, 60.0)).content == DATA


def test_bytes_with_another_hash_are_refused_and_nothing_is_kept(stage: Stage) -> None:
    signed = stage.store.sign_put(KEY, len(DATA), 60.0)
    assert stage.send(signed, bytes(len(DATA))).status_code == 400
    assert stage.store.find(KEY) is None
    assert list(stage.store.objects()) == []


@pytest.mark.parametrize("sent", [DATA[:-1], DATA + b"x", b""], ids=["shorter", "longer", "none"])
def test_another_length_is_refused_and_nothing_is_kept(stage: Stage, sent: bytes) -> None:
    signed = stage.store.sign_put(KEY, len(DATA), 60.0)
    answer = stage.send(signed, sent, content_length=str(len(sent)))
    assert answer.status_code in (400, 403)
    assert stage.store.find(KEY) is None


def test_a_body_without_a_length_is_refused(stage: Stage) -> None:
    signed = stage.store.sign_put(KEY, len(DATA), 60.0)

    def pieces() -> Iterator[bytes]:
        yield DATA

    headers = {name: value for name, value in signed.headers.items() if name != "Content-Length"}
    answer = stage.http.put(signed.url, headers=headers, content=pieces())
    assert answer.status_code in (400, 403, 411)
    assert stage.store.find(KEY) is None


@pytest.mark.parametrize("ahead", [-600.0, 600.0], ids=["behind", "ahead"])
def test_a_signed_request_survives_clocks_that_are_10_minutes_apart(stage: Stage, ahead: float) -> None:
    stage.offset[0] = ahead
    put = stage.store.sign_put(KEY, len(DATA), 3600.0)
    get = stage.store.sign_get(KEY, 3600.0)
    stage.offset[0] = 0.0
    assert stage.send(put, DATA).status_code == 200
    assert stage.send(get).content == DATA


def test_an_expired_request_is_refused(stage: Stage) -> None:
    assert stage.put(KEY, DATA).status_code == 200
    other = key_of(b"other")
    stage.offset[0] = -100.0
    put, get = stage.store.sign_put(other, 5, 60.0), stage.store.sign_get(KEY, 60.0)
    stage.offset[0] = 0.0
    assert stage.send(put, b"other").status_code == 403
    assert stage.send(get).status_code == 403
    assert stage.store.find(other) is None


def _other_tenant(url: httpx.URL) -> httpx.URL:
    return url.copy_with(path=url.path.replace("/a/7/", "/a/8/"))


def _other_object(url: httpx.URL) -> httpx.URL:
    return url.copy_with(path=url.path.replace(KEY.sha256, key_of(b"secret").sha256))


def _climbing(url: httpx.URL) -> httpx.URL:
    return httpx.URL(str(url).replace("/a/7/", "/a/7/../8/"))


def _climbing_hidden(url: httpx.URL) -> httpx.URL:
    return httpx.URL(str(url).replace("/a/7/", "/a/7/%2e%2e/8/"))


def _longer_life(url: httpx.URL) -> httpx.URL:
    for name in ("expires", "X-Amz-Expires"):
        if name in url.params:
            return url.copy_set_param(name, str(int(url.params[name]) + 1))
    raise AssertionError


def _no_signature(url: httpx.URL) -> httpx.URL:
    return url.copy_with(query=None)


@pytest.mark.parametrize(
    "changed",
    [_other_tenant, _other_object, _climbing, _climbing_hidden, _longer_life, _no_signature],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_changed_request_is_refused(
    stage: Stage, changed: Callable[[httpx.URL], httpx.URL], method: str
) -> None:
    stage.store.write(ObjectKey(8, KEY.sha256), len(DATA), [DATA])
    for tenant in (7, 8):
        stage.store.write(key_of(b"secret", tenant), 6, [b"secret"])
    store = stage.store
    signed = store.sign_get(KEY, 60.0) if method == "GET" else store.sign_put(KEY, len(DATA), 60.0)
    answer = stage.http.request(
        method,
        changed(httpx.URL(signed.url)),
        headers=signed.headers,
        content=DATA if method == "PUT" else None,
    )
    assert answer.status_code in (400, 403, 404)
    assert b"secret" not in answer.content
    assert stage.store.find(KEY) is None


def test_a_request_to_read_writes_nothing_and_the_other_way_round(stage: Stage) -> None:
    get = stage.store.sign_get(KEY, 60.0)
    assert stage.http.put(get.url, content=DATA).status_code == 403
    put = stage.store.sign_put(KEY, len(DATA), 60.0)
    assert stage.send(put, DATA).status_code == 200
    assert stage.http.get(put.url).status_code == 403
    assert stage.http.delete(put.url).status_code in (403, 405)
    assert stage.store.find(KEY) is not None


@pytest.mark.parametrize(
    ("wanted", "got", "status"),
    [
        ("bytes=0-9", DATA[:10], 206),
        ("bytes=299990-", DATA[299_990:], 206),
        ("bytes=-5", DATA[-5:], 206),
        ("bytes=299990-900000", DATA[299_990:], 206),
        ("bytes=300000-", None, 416),
        ("bytes=-0", None, 416),
        ("bytes=5-2", DATA, 200),
        ("pages=1-2", DATA, 200),
    ],
    ids=[
        "first",
        "rest",
        "last",
        "beyond",
        "behind",
        "no suffix",
        "backwards",
        "unknown",
    ],
)
def test_ranges_are_read(stage: Stage, wanted: str, got: bytes | None, status: int) -> None:
    stage.put(KEY, DATA)
    answer = stage.send(stage.store.sign_get(KEY, 60.0), Range=wanted)
    if wanted in ("bytes=5-2", "pages=1-2") and answer.status_code == 416:
        return  # S3 refuses what RFC 9110 lets a server ignore
    assert answer.status_code == status
    if got is not None:
        assert answer.content == got
    if status == 206:
        assert answer.headers["Content-Range"].endswith("/300000")


def test_the_dispatcher_reads_ranges(stage: Stage) -> None:
    stage.put(KEY, DATA)
    assert stage.store.read(KEY, 10, 20) == DATA[10:30]
    assert stage.store.read(KEY, 299_999, 20) == DATA[-1:]
    assert stage.store.read(KEY, 300_000, 20) == b""
    assert b"".join(stage.store.chunks(KEY, 299_000)) == DATA[299_000:]
    for missing in (lambda: stage.store.read(key_of(b"x"), 0, 1), lambda: stage.store.chunks(key_of(b"x"))):
        with pytest.raises(NoSuchObject):
            missing()


def test_a_file_is_an_attachment_under_its_name_in_any_script(stage: Stage) -> None:
    stage.put(KEY, DATA)
    signed = stage.store.sign_get(KEY, 60.0, content_type="text/html", name='ñ "影片".html\r\nX: y')
    answer = stage.send(signed)
    assert answer.headers["Content-Disposition"].startswith("attachment; filename*=UTF-8''%C3%B1%20%22")
    assert "X" not in answer.headers


@pytest.mark.parametrize("name", NAMES)
def test_a_download_has_the_name_in_every_script(stage: Stage, name: str) -> None:
    stage.put(KEY, DATA)
    answer = stage.send(stage.store.sign_get(KEY, 60.0, name=name))
    assert answer.status_code == 200
    kind, _, given = answer.headers["Content-Disposition"].partition("; filename*=UTF-8''")
    assert (kind, unquote(given)) == ("attachment", name)


@pytest.mark.parametrize(
    "content_type",
    [
        "text/html",
        "image/svg+xml",
        "application/pdf",
        "application/xhtml+xml",
        "text/html; charset=utf-8",
        "",
    ],
)
def test_nothing_active_is_served_under_its_type(stage: Stage, content_type: str) -> None:
    """Also where its client put it with that type."""
    signed = stage.store.sign_put(KEY, len(DATA), 60.0)
    assert stage.send(signed, DATA, Content_Type=content_type or "text/html").status_code < 300
    answer = stage.send(stage.store.sign_get(KEY, 60.0, content_type=content_type, name="page.html"))
    assert answer.content == DATA
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment")


def test_type_and_disposition_of_an_answer_are_signed(stage: Stage) -> None:
    stage.put(KEY, DATA)
    url = stage.store.sign_get(KEY, 60.0, content_type="image/png", name="a.png").url
    assert stage.http.get(url).headers["Content-Type"] == "image/png"
    changed = [
        url.replace("image%2Fpng", "text%2Fhtml"),
        url.replace("attachment", "inline") if "attachment" in url else url.replace("a.png", "a.html"),
    ]
    for other in changed:
        assert other != url
        assert stage.http.get(other).status_code in (400, 403)


def test_the_dispatcher_writes_an_object(stage: Stage) -> None:
    stage.store.write(KEY, len(DATA), [DATA[:100], DATA[100:]])
    assert b"".join(stage.store.chunks(KEY)) == DATA
    stage.store.write(KEY, len(DATA), [DATA])  # it is there already


@pytest.mark.parametrize(
    "sent", [DATA[:-1], DATA + b"x", bytes(len(DATA))], ids=["shorter", "longer", "other"]
)
def test_the_dispatcher_writes_nothing_of_wrong_bytes(stage: Stage, sent: bytes) -> None:
    with pytest.raises(WrongBytes):
        stage.store.write(KEY, len(DATA), [sent])
    assert stage.store.find(KEY) is None


def test_the_dispatcher_writes_a_large_object(stage: Stage, small_parts: int) -> None:
    data = os.urandom(2 * small_parts + 17)
    pieces = [data[at : at + 1_000_000] for at in range(0, len(data), 1_000_000)]
    stage.store.write(key_of(data), len(data), pieces)
    assert hashlib.sha256(b"".join(stage.store.chunks(key_of(data)))).hexdigest() == key_of(data).sha256
    for wrong in (pieces[:-1], [*pieces, b"x"], [*pieces[:-1], bytes(len(pieces[-1]))]):
        with pytest.raises(WrongBytes):
            stage.store.write(key_of(b"never"), len(data), wrong)
    assert stage.store.find(key_of(b"never")) is None
    assert stage.store.drop_unfinished(datetime.now(UTC) + timedelta(minutes=1)) == 0


def test_objects_are_listed_in_the_order_of_their_keys_and_removed(stage: Stage) -> None:
    bodies = [(tenant, f"{number}".encode()) for tenant in (7, 12, 100) for number in range(9)]
    keys = sorted((key_of(body, tenant) for tenant, body in bodies), key=str)
    for tenant, body in bodies:
        stage.store.write(key_of(body, tenant), len(body), [body])
    assert [one.key for one in stage.store.objects()] == keys
    assert [one.key for one in stage.store.objects(keys[11])] == keys[12:]
    assert [one.key for one in stage.store.objects(ObjectKey(100, "f" * 64))] == [
        key for key in keys if str(key) > f"a/100/{'f' * 64}"
    ]
    for key in keys[3:]:
        stage.store.remove(key)
    stage.store.remove(keys[3])  # no error
    assert [one.key for one in stage.store.objects()] == keys[:3]
    assert stage.send(stage.store.sign_get(keys[3], 60.0)).status_code == 404


def put_parts(stage: Stage, key: ObjectKey, data: bytes, upload: Any, numbers: Any) -> None:
    for number in numbers:
        size = size_of_part(len(data), upload.part_bytes, number)
        begin = (number - 1) * upload.part_bytes
        signed = stage.store.sign_part(key, upload.upload, number, size, 60.0)
        assert stage.send(signed, data[begin : begin + size]).status_code == 200


def test_an_upload_in_parts_is_resumed_and_joined(stage: Stage, small_parts: int) -> None:
    data = os.urandom(2 * small_parts + 17)
    key = key_of(data)
    upload = stage.store.begin_parts(key, len(data))
    assert (upload.parts, upload.part_bytes) == (3, small_parts)
    put_parts(stage, key, data, upload, [3, 1, 1])
    assert stage.store.find_parts(key, upload.upload, len(data)).stored == {1, 3}
    with pytest.raises(NoSuchObject, match="1 of 3 parts"):
        stage.store.complete_parts(key, upload.upload, len(data))
    assert stage.store.find(key) is None
    put_parts(stage, key, data, upload, [2])
    stage.store.complete_parts(key, upload.upload, len(data))
    assert hashlib.sha256(b"".join(stage.store.chunks(key))).hexdigest() == key.sha256
    with pytest.raises(NoSuchObject):
        stage.store.find_parts(key, upload.upload, len(data))


def test_parts_with_another_hash_become_no_object(stage: Stage, small_parts: int) -> None:
    data = os.urandom(small_parts + 17)
    key = key_of(b"something else")
    upload = stage.store.begin_parts(key, len(data))
    put_parts(stage, key, data, upload, [1, 2])
    signed = stage.store.sign_get(key, 60.0)
    answers = []
    real = hashlib.sha256

    def asked(*given: bytes) -> Any:
        answers.append(stage.send(signed).status_code)  # while the hash is computed
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "sha256", asked)
        with pytest.raises(WrongBytes):
            stage.store.complete_parts(key, upload.upload, len(data))
    assert set(answers) == {404}
    assert stage.store.find(key) is None
    stage.store.abandon_parts(key, upload.upload)
    assert stage.store.drop_unfinished(datetime.now(UTC) + timedelta(hours=1)) == 0, "nothing is left"


def test_parts_that_a_process_joined_before_it_died_are_completed_or_dropped(
    s3_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3_stage.store
    assert isinstance(store, S3Store)
    store.part_bytes = SMALL_PART
    data = os.urandom(SMALL_PART + 17)
    key = key_of(data)
    upload = store.begin_parts(key, len(data))
    put_parts(s3_stage, key, data, upload, [1, 2])

    def died(*_: object) -> None:
        raise StoreUnavailable

    for wanted in ("_check_hash", "_copy"):
        with monkeypatch.context() as patch:
            patch.setattr(type(store), wanted, died)
            with pytest.raises(StoreUnavailable):
                store.complete_parts(key, upload.upload, len(data))
        assert store.find(key) is None
    assert store.drop_unfinished(datetime.now(UTC) - timedelta(hours=1)) == 0
    store.complete_parts(key, upload.upload, len(data))
    assert hashlib.sha256(b"".join(store.chunks(key))).hexdigest() == key.sha256
    assert store.drop_unfinished(datetime.now(UTC) + timedelta(hours=1)) == 0, "nothing is left"


def test_parts_are_completed_once_by_many_at_once_and_their_urls_read_nothing(stage: Stage) -> None:
    upload = stage.store.begin_parts(KEY, len(DATA))
    put_parts(stage, KEY, DATA, upload, [1])
    url = stage.store.sign_part(KEY, upload.upload, 1, len(DATA), 60.0).url
    assert stage.http.get(url).status_code >= 400
    assert list(stage.store.objects()) == []

    def complete(_: int) -> None:
        with suppress(NoSuchObject):  # another one was faster
            stage.store.complete_parts(KEY, upload.upload, len(DATA))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(complete, range(3)))
    assert b"".join(stage.store.chunks(KEY)) == DATA
    assert stage.store.drop_unfinished(datetime.now(UTC) + timedelta(hours=1)) == 0, "nothing is left"


def test_a_part_has_the_size_that_was_signed_and_belongs_to_its_object(stage: Stage) -> None:
    upload = stage.store.begin_parts(KEY, len(DATA))
    signed = stage.store.sign_part(KEY, upload.upload, 1, len(DATA), 60.0)
    assert stage.send(signed, DATA[:-1], content_length=str(len(DATA) - 1)).status_code in (400, 403)
    assert stage.store.find_parts(KEY, upload.upload, len(DATA)).stored == frozenset()
    for other, name in ((key_of(b"x"), upload.upload), (KEY, "../../a/7"), (KEY, "0" * 26)):
        with pytest.raises(NoSuchObject):
            stage.store.find_parts(other, name, len(DATA))


def test_an_abandoned_upload_leaves_nothing_and_takes_no_further_part(stage: Stage) -> None:
    upload = stage.store.begin_parts(KEY, len(DATA))
    put_parts(stage, KEY, DATA, upload, [1])
    signed = stage.store.sign_part(KEY, upload.upload, 1, len(DATA), 60.0)
    for _ in range(2):
        stage.store.abandon_parts(KEY, upload.upload)
    with pytest.raises(NoSuchObject):
        stage.store.find_parts(KEY, upload.upload, len(DATA))
    assert stage.send(signed, DATA).status_code == 404
    assert stage.store.drop_unfinished(datetime.now(UTC) + timedelta(hours=1)) == 0


def test_unfinished_uploads_are_dropped_by_age(stage: Stage) -> None:
    upload = stage.store.begin_parts(KEY, len(DATA))
    put_parts(stage, KEY, DATA, upload, [1])
    assert stage.store.drop_unfinished(datetime.now(UTC) - timedelta(hours=1)) == 0
    assert stage.store.drop_unfinished(datetime.now(UTC) + timedelta(hours=1)) == 1
    with pytest.raises(NoSuchObject):
        stage.store.find_parts(KEY, upload.upload, len(DATA))


def test_a_sound_store_has_nothing_to_report(stage: Stage) -> None:
    assert stage.store.check() == ""
