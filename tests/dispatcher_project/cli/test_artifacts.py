"""`artifacts`: files are put, listed, fetched and removed."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from artifacts.models import Artifact, ArtifactUse
from artifacts.store import s3
from gpus.models import AuditEntry, Process
from gpus.registry.audit import cli_actor
from jobs.models import Tenant
from tests.support.factories import make_tenant
from tests.support.terminal import Terminal

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def acme(tmp_path: Path, settings: Any) -> Tenant:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)
    return make_tenant("acme")


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "фильм.bin"
    path.write_bytes(b"a film")
    return path


def test_a_file_is_put_listed_fetched_and_removed(terminal: Terminal, film: Path, tmp_path: Path) -> None:
    put = terminal("artifacts", "put", str(film), "--tenant", "acme", "--json").json
    assert put["exists"] is False
    artifact_id = put["id"]
    assert put["ref"] == {"$artifact": artifact_id}
    assert terminal("artifacts", "put", str(film), "--tenant", "acme").said.splitlines() == [
        f"{artifact_id}  фильм.bin, 6 bytes, of acme, which was there before",
        f'in a payload: {{"$artifact": "{artifact_id}"}}',
    ]
    assert terminal("artifacts", "put", str(film), "--tenant", "acme", "--json").json["exists"] is True
    [row] = terminal("artifacts", "--tenant", "acme", "--state", "stored", "--json").json
    assert (row["id"], row["bytes"], row["tenant"], row["name"]) == (artifact_id, 6, "acme", "фильм.bin")
    assert artifact_id in terminal("artifacts").said
    terminal("artifacts", "get", artifact_id, str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"a film"
    assert terminal("artifacts", "rm", artifact_id).status == 0
    assert Artifact.objects.get().state == "gone"
    again = terminal("artifacts", "get", artifact_id, str(tmp_path / "back"))
    assert again.said == f"artifact {artifact_id} was removed"


@pytest.mark.database
def test_a_file_whose_name_is_no_text_is_put(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xe4.bin")
    path.write_bytes(b"a film")
    run = terminal("artifacts", "put", str(path), "--tenant", "acme", "--content-type", "video/mp4")
    assert (run.status, "··.bin, 6 bytes" in run.said) == (0, True), run.said
    row = Artifact.objects.get()
    assert (row.name, row.content_type) == (".bin", "video/mp4")
    terminal("artifacts", "get", row.pk, str(path))
    assert "··.bin" in terminal("artifacts", "put", f"{path}.none").said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["put", "x", "y"], "put takes a file"),
        (["declare", "x"], "declare takes no names"),
        (["put", "nothing", "--tenant", "acme"], "nothing: No such file"),
        (["put", __file__, "--tenant", "other"], "no tenant is named other"),
        (["get", "x"], "get takes an id and the file"),
        (["get", "x", "y"], "there is no artifact x"),
        (["rm"], "rm takes ids"),
        (["rm", "x"], "there is no artifact x"),
        (["list", "x"], "list takes no names"),
    ],
)
def test_wrong_arguments_are_one_line(terminal: Terminal, arguments: list[str], says: str) -> None:
    run = terminal("artifacts", *arguments)
    assert (run.status, says in run.said) == (2, True), run.said


@pytest.mark.parametrize("wrong", ["png", "a/" + "b" * 126, "a/b\n", "image/*x y"])
def test_a_wrong_content_type_is_refused(terminal: Terminal, film: Path, wrong: str) -> None:
    run = terminal("artifacts", "put", str(film), "--tenant", "acme", "--content-type", wrong)
    assert (run.status != 0, "is not a media type of up to 127 characters" in run.said) == (True, True)
    assert not Artifact.objects.exists()


def test_an_artifact_in_use_is_not_removed(terminal: Terminal, film: Path) -> None:
    artifact_id = terminal("artifacts", "put", str(film), "--tenant", "acme", "--json").json["id"]
    ArtifactUse.objects.create(artifact_id=artifact_id, job="J" * 26)
    run = terminal("artifacts", "rm", artifact_id)
    assert (run.status, "Jobs or runs refer to the artifact" in run.said) == (2, True)


def test_no_file_is_put_or_removed_from_a_host_that_may_not_have_the_webs_folder(
    terminal: Terminal, film: Path
) -> None:
    artifact_id = terminal("artifacts", "put", str(film), "--tenant", "acme", "--json").json["id"]
    now = datetime.now(UTC)
    Process.objects.create(name="web-9:7:a", kind="web", layout=1, started_at=now, beat_at=now)
    for arguments in (("put", str(film), "--tenant", "acme"), ("rm", artifact_id)):
        run = terminal("artifacts", *arguments)
        assert (run.status, "DISPATCHER_ARTIFACT_STORE" in run.said) == (2, True), run.said
    assert Artifact.objects.get().state == "stored"


def test_a_folder_is_declared_as_the_store(terminal: Terminal, film: Path, settings: Any) -> None:
    terminal("artifacts", "put", str(film), "--tenant", "acme")
    known = (settings.ARTIFACT_FOLDER / "store.id").read_text()
    settings.ARTIFACT_FOLDER = settings.ARTIFACT_FOLDER.with_name("new")
    assert terminal("artifacts", "put", str(film), "--tenant", "acme").status == 2
    declared = terminal("artifacts", "declare", "--json")
    assert declared.json == {"folder": str(settings.ARTIFACT_FOLDER)}
    assert (settings.ARTIFACT_FOLDER / "store.id").read_text() == known
    assert terminal("artifacts", "put", str(film), "--tenant", "acme").status == 0


def test_what_the_command_changes_is_audited(terminal: Terminal, film: Path, settings: Any) -> None:
    tenant = Tenant.objects.get(name="acme").pk
    put = terminal("artifacts", "put", str(film), "--tenant", "acme", "--json").json["id"]
    terminal("artifacts", "put", str(film), "--tenant", "acme")  # it is there
    for _ in range(2):
        terminal("artifacts", "rm", put)
    terminal("artifacts", "declare")
    settings.ARTIFACT_FOLDER = film  # no folder
    assert terminal("artifacts", "declare").status == 2
    entries = AuditEntry.objects.order_by("id").values_list("actor", "action", "target", "detail")
    assert list(entries) == [
        (cli_actor(), "put_artifact", f"artifact:{put}", {"tenant": tenant, "bytes": 6}),
        (cli_actor(), "remove_artifact", f"artifact:{put}", {"tenant": tenant}),
        (cli_actor(), "declare_store", "store:folder", {"folder": str(film.with_name("store"))}),
    ]


def test_a_bucket_is_not_declared(terminal: Terminal, settings: Any) -> None:
    pytest.importorskip("boto3", reason="the extra [s3] is not installed")
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_store="s3://films?region=eu-central-1")
    run = terminal("artifacts", "declare")
    assert (run.status, "the store is not a folder" in run.said) == (2, True), run.said


def test_a_missing_package_of_the_store_is_one_line(
    terminal: Terminal, film: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def missing() -> None:
        raise s3.NoBoto

    monkeypatch.setattr(s3, "require_boto", missing)
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_store="s3://films")
    run = terminal("artifacts", "put", str(film), "--tenant", "acme")
    assert (run.status, "gpu-dispatcher[s3]" in run.said) == (2, True), run.said
