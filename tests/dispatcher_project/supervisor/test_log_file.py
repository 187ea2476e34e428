from __future__ import annotations

from pathlib import Path

from dispatcher_project.supervisor.log_file import LogFile


def test_the_files_stay_within_their_bound(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "web.log", max_bytes=10, kept=2)
    for number in range(10):
        log.write(f"line {number}\n".encode())
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["web.log", "web.log.1", "web.log.2"]
    assert (tmp_path / "web.log").read_text() == "line 9\n"
    assert (tmp_path / "web.log.2").read_text() == "line 7\n"


def test_a_restart_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
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


def test_the_tail_leaves_out_what_an_earlier_run_wrote(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    earlier = LogFile(path)
    earlier.write(b"old\n")
    earlier.close()
    log = LogFile(path)
    log.write(b"new\n")
    assert log.tail(5) == ["new"]
    log.close()
