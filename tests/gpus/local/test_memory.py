"""The machine's memory, as files of the kernel say it."""

from __future__ import annotations

import os
from pathlib import Path

from gpus.local.memory import RamGauge, held_by, members

MEMINFO = "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n"


def proc(folder: Path) -> Path:
    (folder / "meminfo").write_text(MEMINFO)
    for pid, session, kb in ((10, 7, 1024), (11, 7, 2048), (12, 8, 4096)):
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(f"{pid} (a ) b) S 1 1 {session} 0 -1")
        (folder / str(pid) / "smaps_rollup").write_text(f"00-ff ---p [rollup]\nRss: 9 kB\nPss: {kb} kB\n")
    return folder


def test_a_session_is_told_from_the_rest(tmp_path: Path):
    memory = RamGauge(proc(tmp_path), tmp_path / "none").read(7)
    assert (memory.total, memory.own, memory.others) == (8192, 3, 2048 - 3)
    assert RamGauge(tmp_path, tmp_path / "none").read(None).own == 0


def test_a_containers_limit_counts_where_it_is_less(tmp_path: Path):
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    gauge = RamGauge(proc(tmp_path), cgroup)
    (cgroup / "memory.current").write_text(str(100 * 1024 * 1024))
    (cgroup / "memory.max").write_text(str(1000 * 1024 * 1024))
    assert (gauge.read(7).total, gauge.read(7).others) == (1000, 97)
    (cgroup / "memory.max").write_text("max")
    assert gauge.read(7).total == 8192


def test_this_process_is_in_its_session_and_holds_something():
    assert os.getpid() in members(os.getsid(0))
    assert held_by(os.getpid()) > 1
    assert held_by(2**22 + 1) == 0
