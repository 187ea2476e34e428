"""`backup` and `restore` with real SQLite files; tests/deploy has PostgreSQL's."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import stat
from pathlib import Path

import pytest

from dispatcher_project.supervisor.backup import BackupError, backup, main
from dispatcher_project.supervisor.data_folder import AlreadyRunning, DataFolder
from dispatcher_project.supervisor.restore import main as main_of_restore
from dispatcher_project.supervisor.restore import restore

KEY = {"DJANGO_SECRET_KEY": "k" * 50}


def folder_at(path: Path, key: str = "the key") -> DataFolder:
    folder = DataFolder(path)
    folder.create()
    (path / "secret_key").write_text(key)
    folder.write("secrets.json", {"api_key": "abc"})
    with sqlite3.connect(path / "db.sqlite3") as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE jobs_tenant (name TEXT)")
        database.execute("INSERT INTO jobs_tenant VALUES ('acme')")
    database.close()
    return folder


def tenants(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path / "db.sqlite3")) as database:
        return [name for (name,) in database.execute("SELECT name FROM jobs_tenant ORDER BY name")]


def test_a_backup_under_writes_restores_elsewhere_with_its_secrets(tmp_path: Path) -> None:
    old = folder_at(tmp_path / "old")
    with contextlib.closing(sqlite3.connect(old.path / "db.sqlite3")) as writer:
        writer.execute("INSERT INTO jobs_tenant VALUES ('committed')")
        writer.commit()
        writer.execute("INSERT INTO jobs_tenant VALUES ('not committed')")
        said = backup(tmp_path / "b.tar", old, {}).line
    assert said.endswith("with its secret key")
    assert stat.S_IMODE((tmp_path / "b.tar").stat().st_mode) == 0o600
    new = DataFolder(tmp_path / "new")
    said = restore(tmp_path / "b.tar", new, {}, overwrite=False).line
    assert "start `up`" in said
    assert tenants(new.path) == ["acme", "committed"]
    assert (new.path / "secret_key").read_text() == "the key"
    assert new.read("secrets.json") == {"api_key": "abc"}
    kept = {"db.sqlite3", "secret_key", "secrets.json"}
    assert {stat.S_IMODE((new.path / name).stat().st_mode) for name in kept} == {0o600}
    assert {path.name for path in new.path.iterdir()} == kept | {"up.lock", "run"}, "nothing half-done stays"


def test_a_used_installation_is_replaced_only_on_request_and_kept(tmp_path: Path) -> None:
    backup(tmp_path / "b.tar", folder_at(tmp_path / "old"), {})
    used = folder_at(tmp_path / "used", key="another")
    with contextlib.closing(sqlite3.connect(used.path / "db.sqlite3")) as writer:
        writer.execute("INSERT INTO jobs_tenant VALUES ('later')")
        writer.commit()
        with pytest.raises(BackupError, match=r"has rows in jobs_tenant: .*--overwrite"):
            restore(tmp_path / "b.tar", used, {}, overwrite=False)
        assert tenants(used.path) == ["acme", "later"]
        restore(tmp_path / "b.tar", used, {}, overwrite=True)
    assert tenants(used.path) == ["acme"], "also of its write-ahead log nothing is left"
    (replaced,) = used.path.glob("secret_key.replaced-*")
    assert replaced.read_text() == "another"


def test_another_secret_key_is_refused(tmp_path: Path) -> None:
    old = folder_at(tmp_path / "old")
    (old.path / "secret_key").unlink()
    said = backup(tmp_path / "b.tar", old, KEY).line
    assert said.endswith("without the environment's secret key: keep that")
    for environment in ({}, {"DJANGO_SECRET_KEY": "x" * 50}):
        with pytest.raises(BackupError, match="under another secret key"):
            restore(tmp_path / "b.tar", DataFolder(tmp_path / "new"), environment, overwrite=False)
        assert not (tmp_path / "new" / "db.sqlite3").exists()
    restore(tmp_path / "b.tar", DataFolder(tmp_path / "new"), KEY, overwrite=False)


def test_what_cannot_be_restored_is_refused_before_any_change(tmp_path: Path) -> None:
    old = folder_at(tmp_path / "old")
    backup(tmp_path / "b.tar", old, {})
    new = DataFolder(tmp_path / "new")
    (tmp_path / "cut.tar").write_bytes((tmp_path / "b.tar").read_bytes()[:300])
    for file in ("cut.tar", "old/secret_key"):
        with pytest.raises(BackupError, match="is not a backup, or is cut off") as refused:
            restore(tmp_path / file, new, {}, overwrite=False)
        assert "\n" not in str(refused.value), "tarfile has a line for each format"
    with pytest.raises(BackupError, match=r"there is no file .*gone\.tar"):
        restore(tmp_path / "gone.tar", new, {}, overwrite=False)
    with pytest.raises(BackupError, match=r"there is no folder .*gone$"):
        backup(tmp_path / "gone" / "b.tar", old, {})
    with pytest.raises(BackupError, match="the backup is of SQLite, and DATABASE_URL names PostgreSQL"):
        restore(tmp_path / "b.tar", new, {"DATABASE_URL": "postgresql://x/y"}, overwrite=False)
    new.create()
    with new.locked(), pytest.raises(AlreadyRunning):
        restore(tmp_path / "b.tar", new, {}, overwrite=False)
    assert not (new.path / "db.sqlite3").exists()


def test_a_backup_overwrites_no_file_and_needs_a_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "DJANGO_SECRET_KEY", "DISPATCHER_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    old = folder_at(tmp_path / "old")
    for expected in (0, 2):
        assert main([str(tmp_path / "b.tar"), "--data-dir", str(old.path)]) == expected
    assert "exists already" in capsys.readouterr().err
    assert main([str(tmp_path / "c.tar"), "--data-dir", str(tmp_path)]) == 2
    assert "name the data folder with --data-dir" in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*.tar")] == ["b.tar"]


def test_both_print_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "DJANGO_SECRET_KEY", "DISPATCHER_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    file, old = tmp_path / "b.tar", folder_at(tmp_path / "old")
    assert main([str(file), "--data-dir", str(old.path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["file"], made["bytes"], made["database"]) == (str(file), file.stat().st_size, "SQLite")
    assert made["has_secret_key"] is True
    assert main_of_restore([str(file), "--data-dir", str(tmp_path / "new"), "--json"]) == 0
    restored = json.loads(capsys.readouterr().out)
    assert restored["made_at"] == made["made_at"]
    assert "migrate" in restored["next"]
