from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher_project.documentation.screenshot import PICTURE, main


def test_the_picture_is_a_png_below_200_kb() -> None:
    assert PICTURE.read_bytes().startswith(b"\x89PNG\r\n")
    assert PICTURE.stat().st_size < 200_000


def test_without_a_running_dispatcher_there_is_no_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = PICTURE.stat().st_mtime_ns
    assert main([str(tmp_path)]) == 2
    assert "up.json" in capsys.readouterr().err
    assert PICTURE.stat().st_mtime_ns == before
