"""The machine's memory, as read from the kernel's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_host.local.device import PortableGauge, RamGauge, machine_gauge, pss_mb, session_pids

MEMINFO = "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n"


def proc(folder: Path) -> Path:
    (folder / "meminfo").write_text(MEMINFO)
    for pid, session, kb in ((10, 7, 1024), (11, 7, 2048), (12, 8, 4096)):
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(f"{pid} (a ) b) S 1 1 {session} 0 -1")
        (folder / str(pid) / "smaps_rollup").write_text(f"00-ff ---p [rollup]\nRss: 9 kB\nPss: {kb} kB\n")
    return folder


def test_memory_of_a_session_is_separate_from_the_rest(tmp_path: Path):
    memory = RamGauge(proc(tmp_path), tmp_path / "none").read(7)
    assert (memory.total, memory.own, memory.others) == (8192, 3, 2048 - 3)
    assert RamGauge(tmp_path, tmp_path / "none").read(None).own == 0


def test_a_containers_lower_limit_counts(tmp_path: Path):
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    gauge = RamGauge(proc(tmp_path), cgroup)
    (cgroup / "memory.current").write_text(str(100 * 1024 * 1024))
    (cgroup / "memory.max").write_text(str(1000 * 1024 * 1024))
    assert (gauge.read(7).total, gauge.read(7).others) == (1000, 97)
    (cgroup / "memory.max").write_text("max")
    assert gauge.read(7).total == 8192


def test_this_process_is_in_its_session_and_holds_something():
    assert os.getpid() in session_pids(os.getsid(0))
    assert pss_mb(os.getpid()) > 1
    assert pss_mb(2**22 + 1) == 0


def test_without_proc_memory_is_read_from_ps():
    ours = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert ours.stdout is not None
    ours.stdout.readline()  # before that it may use no memory yet
    try:
        memory = PortableGauge().read(ours.pid)
        assert 1 < memory.own < memory.own + memory.others <= memory.total
        assert PortableGauge().read(None).own == 0
    finally:
        ours.kill()
        ours.communicate()


def test_a_ps_that_fails_is_a_device_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError):
        PortableGauge().read(None)


def test_the_gauge_is_one_that_reads_here(monkeypatch: pytest.MonkeyPatch):
    assert machine_gauge().read(None).total > 100
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert machine_gauge().read(None).total > 100
    assert isinstance(machine_gauge(), PortableGauge)


def test_incomplete_kernel_files_make_the_device_unreadable(tmp_path: Path):
    (tmp_path / "meminfo").write_text("MemTotal: 8388608 kB\n")
    with pytest.raises(OSError, match="MemAvailable"):
        RamGauge(tmp_path, tmp_path / "none").read(None)
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "stat").write_text("")
    assert session_pids(7, tmp_path) == []
