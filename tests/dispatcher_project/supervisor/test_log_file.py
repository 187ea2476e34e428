from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.supervisor.output import LogFile


def test_the_files_stay_within_their_bound(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "web.log", max_bytes=10, kept=2)
    for number in range(10):
        log.write(f"line {number}\n".encode())
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["web.log", "web.log.1", "web.log.2"]
    assert (tmp_path / "web.log").read_text() == "line 9\n"
    assert (tmp_path / "web.log.2").read_text() == "line 7\n"


def test_a_restart_appends_to_the_file(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        log = LogFile(tmp_path / "web.log", max_bytes=100)
        log.write(text)
        log.close()
    assert (tmp_path / "web.log").read_text() == "first\nsecond\n"


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "web.log")
    log.write(b"one\ntwo\nthree\n")
    assert log.tail(2) == ["two", "three"]
    log.close()


def test_the_tail_excludes_lines_of_an_earlier_run(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    earlier = LogFile(path)
    earlier.write(b"old\n")
    earlier.close()
    log = LogFile(path)
    log.write(b"new\n")
    assert log.tail(5) == ["new"]
    log.close()


def test_a_full_disk_only_loses_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogFile(tmp_path / "web.log")
    log.write(b"first\n")
    with monkeypatch.context() as full:
        full.setattr(log, "_file", FullDisk(log._file))
        log.write(b"12345678\n")
        log.write(b"87654321\n")
    missing = f"(18 bytes are missing: the disk of {tmp_path} is full)"
    assert log.tail(5) == ["first", missing], "a program that could not start logs the reason"
    log.write(b"last\n")
    log.close()
    text = (tmp_path / "web.log").read_text()
    assert text == "first\n(18 bytes are missing here: the disk was full)\nlast\n"


def test_a_failed_open_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogFile(tmp_path / "web.log", max_bytes=10)
    log.write(b"old line\n")
    with monkeypatch.context() as full:
        full.setattr(Path, "open", no_room)
        log.write(b"lost line\n")
    log.write(b"new\n")
    log.close()
    assert (tmp_path / "web.log").read_text().endswith("disk was full)\nnew\n")
    assert (tmp_path / "web.log.1").read_text() == "old line\n"


class FullDisk:
    """An open file on a disk without room."""

    def __init__(self, file: Any) -> None:
        self.closed = file.closed

    def write(self, _: bytes) -> int:
        return no_room()


def no_room(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")
