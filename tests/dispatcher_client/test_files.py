"""Uploads and downloads of both clients, through the real web process and its folder."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.models import Artifact as Row
from artifacts.models import ArtifactUse
from dispatcher_client import Artifact, Client, FileChanged, NotFound, Problem, downloads
from dispatcher_client import __main__ as command_line
from dispatcher_project.web import artifact_bytes
from tests.support.api_harness import Account, api
from tests.support.client_files import PART, client, make_file, store
from tests.support.file_names import NAMES
from tests.support.live_web import redis_url, tenant, web
from tests.support.servers.web import Web

__all__ = ["api", "client", "redis_url", "store", "tenant", "web"]


class Stopped(Exception):
    """The client's program ends."""


@pytest.mark.parametrize("size", [0, 1, 100_000, 4 * PART + 17], ids=["empty", "byte", "small", "parts"])
def test_a_file_goes_to_the_store_and_back(client: Client, tmp_path: Path, size: int) -> None:
    path = make_file(tmp_path, size)
    up: list[tuple[int, int]] = []
    down: list[tuple[int, int]] = []
    sent = client.upload(path, on_progress=lambda *done: up.append(done))
    assert (sent.state, sent.bytes, sent.name) == ("stored", size, "film.bin")
    assert sent.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    got = client.download(sent.ref, tmp_path / "back.bin", on_progress=lambda *done: down.append(done))
    assert got == client.artifact(sent.id)
    assert (tmp_path / "back.bin").read_bytes() == path.read_bytes()
    assert up[-1] == down[-1] == (size, size)
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_any_script_goes_the_whole_way(client: Client, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(name.encode())
    sent = client.upload(path)
    assert (sent.name, Row.objects.get().name) == (name, name)
    found = client.download_all({"film": sent.ref}, tmp_path / "back")
    assert found == {sent.id: tmp_path / "back" / name}
    assert found[sent.id].read_bytes() == name.encode()


def test_a_submit_refers_to_an_uploaded_file(client: Client, tmp_path: Path) -> None:
    sent = client.upload(make_file(tmp_path, 100), name="фильм.bin")
    job = client.submit("zimg", {"film": sent.ref})
    assert list(ArtifactUse.objects.values_list("artifact_id", "job")) == [(sent.id, job.job_id)]
    assert sent.name == "фильм.bin"


def test_a_file_that_is_there_is_not_sent_again(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_file(tmp_path, 2 * PART)
    first = client.upload(path)
    monkeypatch.setattr(artifact_bytes, "_receiver", lambda *_: {}["sent again"])
    assert client.upload(path).id == first.id


def test_an_interrupted_upload_sends_only_what_is_missing(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_file(tmp_path, 4 * PART)
    sent: list[int] = []
    real = artifact_bytes._receiver

    def counted(grant: Any, store: Any) -> Any:
        sent.append(grant.number)
        return real(grant, store)

    def stop(done: int, of: int) -> None:
        if done > 2 * PART:
            raise Stopped

    monkeypatch.setattr(artifact_bytes, "_receiver", counted)
    with pytest.raises(Stopped):
        client.upload(path, on_progress=stop)
    assert client.upload(path).state == "stored"
    assert sent.count(1) == sent.count(2) == sent.count(4) == 1


def test_an_interrupted_download_goes_on_where_it_ended(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_CHUNK_BYTES", 50_000)
    path = make_file(tmp_path, 3 * PART)
    sent = client.upload(path)

    def stop(done: int, of: int) -> None:
        if done > PART:
            raise Stopped

    with pytest.raises(Stopped):
        client.download(sent, tmp_path / "back.bin", on_progress=stop)
    (partial,) = tmp_path.glob("*.part")
    kept = partial.stat().st_size
    assert PART < kept < 3 * PART
    assert not (tmp_path / "back.bin").exists()
    steps: list[int] = []
    client.download(sent, tmp_path / "back.bin", on_progress=lambda done, of: steps.append(done))
    assert steps[0] > kept
    assert (tmp_path / "back.bin").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("wrong", [b"wrong", b"x" * 1000, b"x" * 1001])
def test_a_wrong_partial_file_is_loaded_again(client: Client, tmp_path: Path, wrong: bytes) -> None:
    path = make_file(tmp_path, 1000)
    sent = client.upload(path)
    (tmp_path / f".{sent.id}.part").write_bytes(wrong)
    client.download(sent, tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == path.read_bytes()


def test_wrong_bytes_of_the_store_become_no_file(client: Client, tmp_path: Path, store: Path) -> None:
    sent = client.upload(make_file(tmp_path, 1000))
    next((store / "a").rglob(sent.sha256)).write_bytes(b"x" * 1000)
    with pytest.raises(FileChanged, match="not the artifact's"):
        client.download(sent, tmp_path / "back.bin")
    assert list(tmp_path.glob("back.bin*")) == list(tmp_path.glob("*.part")) == []


def test_files_that_are_there_are_not_loaded_again(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (client.upload(make_file(tmp_path, size, name="x")) for size in (1000, PART))
    result, folder = {"films": [first.ref, second.ref]}, tmp_path / "out"
    steps: list[tuple[int, int]] = []

    def stop(done: int, of: int) -> None:
        steps.append((done, of))
        if done > 1000:
            raise Stopped

    with pytest.raises(Stopped):
        client.download_all(result, folder, on_progress=stop)
    assert {of for _, of in steps} == {1000 + PART}
    began: list[Any] = []
    real = artifact_bytes.read_grant
    monkeypatch.setattr(
        artifact_bytes, "read_grant", lambda method, key, *rest: began.append(key) or real(method, key, *rest)
    )
    steps.clear()
    paths = client.download_all(result, folder, on_progress=lambda *done: steps.append(done))
    assert steps[0] == (1000, 1000 + PART)
    assert steps[-1] == (1000 + PART, 1000 + PART)
    assert [key.sha256 for key in began] in ([second.sha256], [])
    began.clear()
    assert client.download_all(result, folder) == paths
    assert [path.name for path in paths.values()] == ["x", f"{second.id}-x"]
    client.download(first, paths[first.id])
    assert began == []


def test_a_file_of_something_else_is_kept(client: Client, tmp_path: Path) -> None:
    sent = client.upload(make_file(tmp_path, 1000, name="notes.txt"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    for _ in range(2):
        paths = client.download_all([sent.ref], tmp_path / "out")
        assert paths == {sent.id: tmp_path / "out" / f"{sent.id}-notes.txt"}
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert len(list((tmp_path / "out").iterdir())) == 2
    client.download(sent, tmp_path / "out" / "notes.txt")
    assert (tmp_path / "out" / "notes.txt").stat().st_size == 1000


def test_calls_at_the_same_time_do_not_damage_each_others_files(client: Client, tmp_path: Path) -> None:
    sent = [client.upload(make_file(tmp_path, 3000 + number, name="same.bin")) for number in range(3)]
    results = [[sent[0].ref, sent[1].ref], [sent[1].ref, sent[2].ref], [sent[2].ref, sent[0].ref]] * 3
    with ThreadPoolExecutor(len(results)) as threads:
        found = list(threads.map(lambda one: client.download_all(one, tmp_path / "out"), results))
    for paths in found:
        for artifact in sent:
            if artifact.id in paths:
                data = paths[artifact.id].read_bytes()
                assert hashlib.sha256(data).hexdigest() == artifact.sha256
    assert list((tmp_path / "out").glob("*.part")) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"x" * (2 * PART)),
        lambda path: path.write_bytes(b"short"),
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
    ],
    ids=["other bytes", "shorter", "longer"],
)
def test_a_file_that_changes_while_it_is_uploaded_is_refused(
    client: Client, tmp_path: Path, store: Path, change: Callable[[Path], Any]
) -> None:
    path = make_file(tmp_path, 2 * PART)
    once = threading.Event()

    def changing(done: int, of: int) -> None:
        if not once.is_set():
            once.set()
            change(path)

    with pytest.raises((FileChanged, Problem)):
        client.upload(path, on_progress=changing)
    assert not [one for one in store.glob("a/**/*") if one.is_file()]
    assert Row.objects.get().state == "promised"


def test_an_expired_url_is_replaced(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from artifacts.store.local import LocalStore

    real, made = LocalStore._signed, list[int]()

    def expired_first(self: LocalStore, grant: Any, seconds: float) -> Any:
        made.append(1)
        return real(self, grant, -10.0 if len(made) == 1 else seconds)

    monkeypatch.setattr(LocalStore, "_signed", expired_first)
    assert client.upload(make_file(tmp_path, 100)).state == "stored"


def test_errors_name_what_is_wrong(client: Client, tmp_path: Path, settings: Any) -> None:
    with pytest.raises(FileNotFoundError):
        client.upload(tmp_path / "nothing")
    with pytest.raises(NotFound):
        client.download("0" * 26, tmp_path / "x")
    for bad in ("../../me", {"artifact": "x"}, 7):
        with pytest.raises(ValueError, match="artifact"):
            client.download(bad, tmp_path / "x")  # type: ignore[arg-type]
    settings.DISPATCHER = replace(settings.DISPATCHER, max_artifact_bytes=10)
    with pytest.raises(Problem) as refused:
        client.upload(make_file(tmp_path, 11))
    assert refused.value.code == "artifact_too_large"


def test_the_command_line_uploads_and_downloads(
    web: Web,
    tenant: Account,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DISPATCHER_URL", web.url)
    monkeypatch.setenv("DISPATCHER_API_KEY", tenant.key)
    path = make_file(tmp_path, 1000)
    assert command_line.main(["upload", str(path)]) == 0
    sent = json.loads(capsys.readouterr().out)
    assert list(sent)[:2] == ["id", "ref"]
    assert sent["ref"] == {"$artifact": sent["id"]}
    assert command_line.main(["download", sent["id"], str(tmp_path / "back.bin")]) == 0
    assert (tmp_path / "back.bin").read_bytes() == path.read_bytes()


def test_an_artifact_names_its_reference() -> None:
    fields = dict.fromkeys(Artifact.__dataclass_fields__)
    assert Artifact(**{**fields, "id": "X"}).ref == {"$artifact": "X"}  # type: ignore[arg-type]
