"""The hostile model finds a planted secret, so that an attack which finds none proves something."""

from __future__ import annotations

from pathlib import Path

from verification.hostile.model import Look


def test_a_secret_in_a_file_is_found_and_only_its_place_returned(tmp_path: Path) -> None:
    assert "secrets.json" not in Look().run({"folder": str(tmp_path)}, None)["read"]
    (tmp_path / "secrets.json").write_text('"planted-secret"')
    found = Look().run({"folder": str(tmp_path)}, None)
    assert "secrets.json" in found["read"]
    assert "planted-secret" not in str(found)
