"""Inputs that model code reads: cached by their URL, checked, bounded. A real folder store over HTTP."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from artifacts.keys import ObjectKey
from artifacts.store.configured import STORE_PATH
from artifacts.store.local import LocalStore
from gpu_host.handlers import BadInput
from gpu_host.handlers.context import RunContext
from gpu_host.handlers.errors import Cancelled
from gpu_host.handlers.files import InputCache, InputUnavailable
from tests.support.servers.artifact_store import serving_store
from tests.support.servers.handlers import QuietHandler, serve_handler


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    stores: list[LocalStore] = []
    with serving_store(lambda: stores[0]) as url:
        stores.append(LocalStore(tmp_path / "store", f"{url}{STORE_PATH}", lambda: datetime.now(UTC)))
        yield stores[0]


def put(store: LocalStore, data: bytes, tenant_id: int = 7) -> str:
    key = ObjectKey(tenant_id, hashlib.sha256(data).hexdigest())
    store.write(key, len(data), [data])
    return store.sign_get(key, 60.0).url


def new_run(folder: Path, name: str, **values: Any) -> RunContext:
    return RunContext(output_dir=folder / "runs" / name, **{"input_seconds": 0.0, **values})


def test_an_input_is_read_once_and_opened_again(store, tmp_path, monkeypatch) -> None:
    data = os.urandom(3_000_000)
    url = put(store, data)
    first, second = new_run(tmp_path, "1"), new_run(tmp_path, "2")
    assert first.open(url).read() == data
    assert first.path(url) == first.path(url)
    monkeypatch.setattr(InputCache, "_download", None)
    path = second.path(put(store, data))  # another signature
    assert path.read_bytes() == data
    assert path.is_relative_to(second.output_dir)


def test_an_empty_input_is_read_and_cached(store, tmp_path) -> None:
    url = put(store, b"")
    for name in "12":
        assert new_run(tmp_path, name).path(url).read_bytes() == b""


def test_a_cached_file_is_not_returned_without_a_valid_signature(store, tmp_path) -> None:
    url = put(store, b"a secret picture")
    new_run(tmp_path, "1").path(url)
    forged = new_run(tmp_path, "2")
    with pytest.raises(BadInput, match="refuses"):
        forged.path(url.replace("signature=", "signature=0"))
    other_host = url.replace("127.0.0.1", "localhost").replace("signature=", "signature=0")
    with pytest.raises(BadInput, match="refuses"):
        forged.path(other_host)
    assert not list((forged.output_dir / "inputs").iterdir())


@pytest.mark.parametrize("leaves_empty", [False, True])
def test_an_erased_input_leaves_the_cache_at_its_next_use(store, tmp_path, leaves_empty: bool) -> None:
    url = put(store, b"a secret picture")
    new_run(tmp_path, "1").path(url)
    (file,) = (store.root / "a").rglob(hashlib.sha256(b"a secret picture").hexdigest())
    if leaves_empty:
        file.write_bytes(b"")
    else:
        file.unlink()
    again = new_run(tmp_path, "2")
    with pytest.raises(BadInput, match="no such input any more"):
        again.path(url)
    assert not list((again.output_dir / "inputs").iterdir())
    assert not list((tmp_path / "runs" / "inputs").iterdir())


def test_a_cached_input_is_not_given_out_to_another_host(store, tmp_path) -> None:
    """Which could answer anything to the check of the signature."""
    url = put(store, b"a secret picture")
    new_run(tmp_path, "1").path(url)

    class Yes(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(206)
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"x")

    with serve_handler(Yes) as elsewhere:
        parts = urlsplit(url)._replace(netloc=urlsplit(elsewhere).netloc)
        with pytest.raises(InputUnavailable, match="other bytes"):
            new_run(tmp_path, "2").path(parts.geturl())


@pytest.mark.parametrize(
    ("length", "error", "says"),
    [
        (None, BadInput, "more than 1000000 bytes (DISPATCHER_INPUT_CACHE_BYTES)"),
        (10**18, InputUnavailable, "no room for an input of 1000000000000000000 bytes"),
    ],
)
def test_an_endless_input_does_not_fill_the_disk(tmp_path, length, error, says) -> None:
    """A client may name any server in the place of an artifact."""
    sent: list[int] = []

    class Endless(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            with suppress(OSError):  # the reader leaves
                while True:
                    self.wfile.write(bytes(100_000))
                    sent.append(100_000)

    runs = tmp_path / "runs"
    runs.mkdir()
    with serve_handler(Endless) as url, pytest.raises(error) as refused:
        InputCache(tmp_path / "cache", 1_000_000).fetch(f"{url}/store/a/1/{'0' * 64}?x=1", runs)
    assert says in str(refused.value)
    assert sum(sent) < 20_000_000
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []


def test_other_bytes_than_those_of_the_hash_are_refused(store, tmp_path) -> None:
    url = put(store, b"right")
    (file,) = (store.root / "a").rglob(hashlib.sha256(b"right").hexdigest())
    file.write_bytes(b"wrong")
    run = new_run(tmp_path, "1")
    with pytest.raises(InputUnavailable, match="other bytes"):
        run.path(url)
    assert not list((run.output_dir / "inputs").iterdir())


def test_a_store_that_is_away_for_a_while_costs_no_run(store, tmp_path, monkeypatch) -> None:
    url, pauses = put(store, b"picture"), []
    (file,) = (store.root / "a").rglob(hashlib.sha256(b"picture").hexdigest())
    file.write_bytes(b"pict")  # as if the answer was cut off
    run = new_run(tmp_path, "1", input_seconds=60.0)

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            file.write_bytes(b"picture")

    monkeypatch.setattr(run, "wait", wait)
    assert run.path(url).read_bytes() == b"picture"
    assert pauses == [0.5, 1.0, 2.0]


def test_a_cancelled_run_waits_for_no_input(tmp_path) -> None:
    run = new_run(tmp_path, "1", input_seconds=60.0)
    run.cancel()
    with pytest.raises(Cancelled):
        run.path(f"http://127.0.0.1:9/store/a/1/{'0' * 64}?x=1")


def test_a_store_that_does_not_answer_is_no_bad_input(tmp_path) -> None:
    with pytest.raises(InputUnavailable, match="does not answer"):
        new_run(tmp_path, "1").path(f"http://127.0.0.1:9/store/a/1/{'0' * 64}?x=1")


@pytest.mark.parametrize(
    "value",
    [
        "",
        5,
        None,
        {"$artifact": "x"},
        "http://h/x.png",
        f"file:///a/1/{'0' * 64}",
        "http://h/a/1/" + "g" * 64,
    ],
)
def test_a_value_that_is_no_artifact_is_bad_input(tmp_path, value) -> None:
    with pytest.raises(BadInput):
        new_run(tmp_path, "1").path(value)


def test_the_cache_is_bounded_and_drops_what_was_not_used_for_the_longest_time(store, tmp_path) -> None:
    urls = [put(store, bytes([number]) * 1000) for number in range(4)]
    kept = [
        new_run(tmp_path, str(number), input_cache_bytes=2500).path(url)
        for number, url in enumerate(urls[:2])
    ]
    cache = tmp_path / "runs" / "inputs"
    for age, file in zip(
        (100, 50), sorted(cache.iterdir(), key=lambda one: one.stat().st_mtime), strict=True
    ):
        os.utime(file, (file.stat().st_mtime - age,) * 2)
    before = set(cache.iterdir())
    new_run(tmp_path, "8", input_cache_bytes=2500).path(urls[0])  # used again
    new_run(tmp_path, "9", input_cache_bytes=2500).path(urls[2])
    assert len(before & set(cache.iterdir())) == 1
    assert sum(file.stat().st_size for file in cache.iterdir()) == 2000
    assert [path.read_bytes()[0] for path in kept] == [0, 1]  # in the folders of their runs
    new_run(tmp_path, "10", input_cache_bytes=500).path(urls[3])  # too large for it
    assert kept[0].exists()
