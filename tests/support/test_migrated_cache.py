from __future__ import annotations

from pathlib import Path

from tests.support.migrated_cache import digest_of_migrations


def test_a_changed_an_added_and_a_renamed_migration_are_not_begun_without(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "migrations"
    folder.mkdir(parents=True)
    first = folder / "0001_initial.py"
    first.write_text("one")
    digests = [digest_of_migrations(tmp_path)]
    first.write_text("two")
    digests.append(digest_of_migrations(tmp_path))
    (folder / "0002_next.py").write_text("")
    digests.append(digest_of_migrations(tmp_path))
    first.rename(folder / "0001_other.py")
    digests.append(digest_of_migrations(tmp_path))
    assert len(set(digests)) == 4
    assert digest_of_migrations(tmp_path) == digests[-1]
