"""Transfers over bad networks: tried again from the last progress, at new URLs, and never for ever."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher_client import (
    Client,
    FileChanged,
    NoAnswer,
    NotAllowed,
    Problem,
    Unavailable,
    transport,
    uploads,
)
from tests.support.new_client import NewClient
from tests.support.servers.handlers import QuietHandler, serve_handler

DATA = bytes(range(256)) * 40
PART = 100_000
TIMEOUT = b"<Error><Code>RequestTimeout</Code></Error>"
Answer = int | tuple[int, bytes] | str
"""A status, also with a body; "cut": the connection ends in the middle; "restarted": it does,
after all bytes were begun again; "endless": an error."""


class FakeStore:
    """A dispatcher and its store.

    answers: the next ones of the store, which then behaves. sent: bytes of an endless one. completions: the
    next ones of `complete`. artifact: fields of `meta`. location: of the redirect to the store."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.completions: list[int] = []
        self.artifact: dict[str, Any] = {}
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.stored: dict[int, bytes] = {}
        self.size = self.sent = 0
        self.url = ""
        self.location: str | None = None

    def meta(self) -> dict[str, Any]:
        return {
            "id": "ART",
            "state": "stored",
            "bytes": len(DATA),
            "sha256": hashlib.sha256(DATA).hexdigest(),
            "content_type": "",
            "name": "film.bin",
            "made_by_job": None,
            "created_at": "2026-01-01T00:00:00+00:00",
            "expires_at": "2026-01-01T00:00:00+00:00",
            **self.artifact,
        }

    def signed(self, number: int, size: int) -> dict[str, Any]:
        headers = {"Content-Length": str(size)}
        return {"method": "PUT", "url": f"{self.url}/store/{number}", "headers": headers}

    def promise(self, body: dict[str, Any]) -> dict[str, Any]:
        self.size = body["bytes"]
        numbers = range(1, -(-self.size // PART) + 1) if body["parts"] else range(1)
        missing = [
            {
                **self.signed(number, min(PART, self.size - (number - 1) * PART)),
                "number": number,
                "first": (number - 1) * PART,
                "bytes": min(PART, self.size - (number - 1) * PART),
            }
            for number in numbers
            if number and number not in self.stored
        ]
        parts = {"count": len(numbers), "missing": missing} if body["parts"] else None
        upload = self.signed(0, self.size)
        return {"id": "ART", "exists": False, "upload": upload, "parts": parts}


@pytest.fixture
def store() -> Iterator[FakeStore]:
    store = FakeStore()

    class Handler(QuietHandler):
        def say(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            store.asked.append(f"GET {self.path}")
            if self.path.endswith("/meta"):
                self.say(200, json.dumps(store.meta()).encode())
            elif self.path.startswith("/api"):
                own = f"{store.url}/store/{len(store.asked)}"
                self.say(302, Location=own if store.location is None else store.location)
            else:
                self.send_bytes()

        def send_bytes(self) -> None:
            store.ranges.append(self.headers.get("Range") or "")
            first = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            rest = DATA[first:]
            answer = store.answers.pop(0) if store.answers else 206 if first else 200
            if answer == "endless":
                self.send_response(500)
                self.end_headers()
                while True:  # until the client leaves
                    self.wfile.write(bytes(100_000))
                    store.sent += 100_000
            if answer in ("cut", "restarted"):
                body = rest if answer == "cut" else DATA
                self.say(206 if body != DATA else 200, body[:1000], **{"Content-Length": str(len(body))})
            elif answer in (200, 206):
                self.say(answer, DATA if answer == 200 else rest)
            else:
                self.say(*answer if isinstance(answer, tuple) else (answer,))

        def do_POST(self) -> None:
            store.asked.append(f"POST {self.path}")
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"null")
            if not self.path.endswith("/complete"):
                self.say(201, json.dumps(store.promise(body)).encode())
                return
            status = store.completions.pop(0) if store.completions else 200
            problem = {"code": "artifact_not_uploaded", "status": status}
            document, kind = (store.meta(), "json") if status == 200 else (problem, "problem+json")
            self.say(status, json.dumps(document).encode(), **{"Content-Type": f"application/{kind}"})

        def do_PUT(self) -> None:
            number, length = int(self.path.rpartition("/")[2]), int(self.headers["Content-Length"])
            store.asked.append(f"PUT {number}")
            answer = store.answers.pop(0) if store.answers else 200
            body = self.rfile.read(length // 2 if answer == "cut" else length)
            if answer == "cut":
                self.close_connection = True
                return
            assert not isinstance(answer, str)
            if answer == 200:
                store.stored[number] = body
            self.say(*answer if isinstance(answer, tuple) else (answer,))

    with serve_handler(Handler) as store.url:
        yield store


@pytest.fixture
def client(store: FakeStore, new_client: NewClient, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client whose clock advances by a second with each read, and that retries for ten seconds."""
    seconds = itertools.count()
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    monkeypatch.setattr(transport, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(uploads, "PARTS_ABOVE_BYTES", PART)
    return new_client(store.url, "the-key", retry_seconds=10.0, timeout_seconds=1e6)


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "film.bin"
    path.write_bytes(DATA)
    return path


def puts(store: FakeStore) -> int:
    return sum(one.startswith("PUT") for one in store.asked)


def test_a_download_that_is_cut_often_goes_on(client: Client, store: FakeStore, tmp_path: Path) -> None:
    store.answers = ["cut"] * 9
    client.download("ART", tmp_path / "film")
    assert (tmp_path / "film").read_bytes() == DATA
    assert store.ranges == ["", *(f"bytes={done}000-" for done in range(1, 10))]


def test_a_download_without_progress_ends(client: Client, store: FakeStore, tmp_path: Path) -> None:
    store.answers = ["cut", *[503] * 100]
    with pytest.raises(Unavailable):
        client.download("ART", tmp_path / "film")
    store.answers = []
    client.download("ART", tmp_path / "film")
    assert store.ranges[-1] == "bytes=1000-"


def test_a_store_that_always_begins_again_at_the_first_byte_is_not_asked_for_ever(
    client: Client, store: FakeStore, tmp_path: Path
) -> None:
    store.answers = ["restarted"] * 100
    with pytest.raises(NoAnswer, match=r"cut off|complete"):
        client.download("ART", tmp_path / "film")
    assert len(store.ranges) < 50


@pytest.mark.parametrize("location", ["", "/store/1", "file:///etc/passwd", "data://x/y", "http://["])
def test_a_url_that_is_not_of_http_is_not_opened(
    client: Client, store: FakeStore, tmp_path: Path, location: str
) -> None:
    store.location = location
    with pytest.raises(NoAnswer, match=r"no http\(s\) URL"):
        client.download("ART", tmp_path / "film")


def test_bytes_that_cannot_be_published_are_kept(client: Client, store: FakeStore, tmp_path: Path) -> None:
    (tmp_path / "film").mkdir()
    with pytest.raises(IsADirectoryError):
        client.download("ART", tmp_path / "film")
    client.download("ART", tmp_path / "other")
    assert len(store.ranges) == 1
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["other"]


def test_an_answer_with_all_bytes_in_place_of_a_range_is_taken(
    client: Client, store: FakeStore, tmp_path: Path
) -> None:
    store.answers = ["cut", 200]
    client.download("ART", tmp_path / "film")
    assert (tmp_path / "film").read_bytes() == DATA


@pytest.mark.parametrize("status", [403, 404])
def test_a_refused_url_is_replaced_by_a_new_one(
    client: Client, store: FakeStore, film: Path, status: int
) -> None:
    store.answers = [status, "cut", status]
    client.download("ART", film.with_name("back"))
    of_store = [one for one in store.asked if one.startswith("GET /store")]
    assert len(of_store) == len(set(of_store)) == 4
    store.answers = [status, status]
    client.upload(film)
    assert (puts(store), store.stored) == (3, {0: DATA})


def test_a_url_that_is_always_refused_ends_the_transfer(client: Client, store: FakeStore, film: Path) -> None:
    store.answers = [403] * 100
    with pytest.raises(NotAllowed):
        client.download("ART", film.with_name("back"))
    with pytest.raises(NotAllowed):
        client.upload(film)
    assert puts(store) == 5


@pytest.mark.parametrize("answer", [409, 507, (400, TIMEOUT), 503, 429])
def test_an_answer_of_the_store_that_passes_is_no_refusal(
    client: Client, store: FakeStore, film: Path, answer: Answer
) -> None:
    store.answers = [answer, answer]
    client.upload(film)
    assert store.stored == {0: DATA}
    assert sum(one == "POST /api/v1/artifacts" for one in store.asked) == 1


def test_other_answers_are_refusals(client: Client, store: FakeStore, film: Path) -> None:
    store.answers = [(400, b"<Code>BadDigest</Code>")]
    with pytest.raises(Problem):
        client.upload(film)
    assert puts(store) == 1


def test_an_upload_that_is_cut_often_is_sent_in_the_end(client: Client, store: FakeStore, film: Path) -> None:
    film.write_bytes(DATA * 50)
    store.answers = ["cut"] * 15
    client.upload(film)
    assert b"".join(store.stored[number] for number in sorted(store.stored)) == DATA * 50


def test_an_upload_that_is_always_cut_ends(
    client: Client, store: FakeStore, film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_PUT_TRIES", 3)
    store.answers = ["cut"] * 1000
    with pytest.raises(NoAnswer):
        client.upload(film)
    assert 3 < puts(store) < 30


def test_urls_that_expire_again_and_again_stop_no_upload_that_goes_on(
    client: Client, store: FakeStore, film: Path
) -> None:
    """Ten hours over a slow line, with URLs that live for one."""
    film.write_bytes(DATA * 100)
    store.answers = [200, 403] * 8
    client.upload(film)
    assert len(store.stored) == 11


def test_parts_that_the_store_lost_are_sent_again(client: Client, store: FakeStore, film: Path) -> None:
    store.completions = [409]
    client.upload(film)
    assert puts(store) == 2
    store.completions = [409] * 100
    with pytest.raises(Problem, match="artifact_not_uploaded"):
        client.upload(film)


@pytest.mark.parametrize(
    "wrong", [{"sha256": "../../x"}, {"sha256": "A" * 64}, {"id": "../x"}, {"id": "x" * 300}, {"bytes": -1}]
)
def test_a_servers_fields_never_become_paths(
    store: FakeStore, new_client: NewClient, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    store.artifact = wrong
    with pytest.raises(NoAnswer, match="not an artifact"):
        new_client(store.url, "k", retry_seconds=0.0).download_all({"$artifact": "ART"}, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "..\\up", "/etc/up", "\x00up", "x/" * 300 + "up", ".up", "up. "])
def test_a_hostile_name_stays_in_the_folder(
    client: Client, store: FakeStore, tmp_path: Path, name: str
) -> None:
    store.artifact = {"name": name}
    paths = client.download_all({"$artifact": "ART"}, tmp_path / "new")
    assert paths == {"ART": tmp_path / "new" / "up"}
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["up"]


def test_an_endless_error_is_not_read_on(client: Client, store: FakeStore, tmp_path: Path) -> None:
    store.answers = ["endless"]
    client.download("ART", tmp_path / "film")
    assert store.sent < 20_000_000
    assert (tmp_path / "film").read_bytes() == DATA


def test_more_bytes_than_the_artifact_has_are_refused(
    client: Client, store: FakeStore, tmp_path: Path
) -> None:
    store.artifact = {"bytes": 100, "sha256": hashlib.sha256(DATA[:100]).hexdigest()}
    with pytest.raises(FileChanged, match="more bytes"):
        client.download("ART", tmp_path / "film")
    assert not (tmp_path / "film").exists()
