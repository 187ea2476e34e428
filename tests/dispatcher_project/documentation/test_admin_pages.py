from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher_project.documentation.admin_pages import main


def test_without_a_running_dispatcher_there_are_no_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISPATCHER_DATA_DIR", str(tmp_path))
    assert main([str(tmp_path / "pictures")]) == 2
    assert "up.json" in capsys.readouterr().err
    for arguments in ([], ["--help"]):
        assert main(arguments) == 2
        assert "usage: " in capsys.readouterr().err
    assert not (tmp_path / "pictures").exists()
