from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.support.processes import is_alive
from tests.support.supervised import Run, child
from tests.support.waiting import wait_for

READY_AND_DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnotify('READY=1')\nsignal.pause()"


def test_a_stage_begins_when_all_of_the_stage_before_are_ready(supervise: Callable[..., Run]) -> None:
    slow = "time.sleep(0.3)\nnote('ready')\nnotify('READY=1')\nsignal.pause()"
    run = supervise([child("a", slow), child("b")], [child("c")])
    run.wait_ready()
    assert run.notes().index("ready a") < run.notes().index("start c")


def test_a_step_is_done_when_it_ended_with_0(supervise: Callable[..., Run]) -> None:
    run = supervise([child("prepare", "note('done')", step=True)], [child("web")])
    assert "prepare" not in run.wait_ready()
    assert run.notes() == ["start prepare", "done prepare", "start web"]


def test_a_failed_step_ends_the_start_and_shows_why(supervise: Callable[..., Run]) -> None:
    run = supervise([child("db")], [child("prepare", "sys.exit('no such table')", step=True)], [child("web")])
    assert run.process.wait(60) == 1
    output = run.output.read_text()
    assert "FAILED prepare ended (exit code 1)" in output
    assert "no such table" in output
    assert run.notes() == ["start db", "start prepare", "stop db"]


def test_a_child_that_never_becomes_ready_ends_the_start(supervise: Callable[..., Run]) -> None:
    run = supervise([child("web", "sys.exit(3)")])
    assert run.process.wait(60) == 1
    assert run.notes() == ["start web"] * 3
    assert "web ended (exit code 3) before it was ready" in run.output.read_text()


def test_children_stop_in_the_order_of_the_plan(supervise: Callable[..., Run]) -> None:
    run = supervise(
        [child("valkey")], [child("web"), child("worker")], stop=[["web"], ["worker"], ["valkey"]]
    )
    pids = run.wait_ready()
    assert run.stop(signal.SIGINT) == 0
    assert run.notes()[3:] == ["stop web", "stop worker", "stop valkey"]
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_dead_child_is_restarted_and_its_new_pid_reported(supervise: Callable[..., Run]) -> None:
    run = supervise([child("web"), child("worker")])
    before = run.wait_ready()
    os.kill(before["worker"], signal.SIGKILL)
    wait_for(lambda: run.pids()["worker"] != before["worker"])
    assert run.pids()["web"] == before["web"]
    assert "worker      │ ended (SIGKILL); next start in 1 s" in run.output.read_text()


def test_pids_are_reported_once_a_full_disk_has_space(supervise: Callable[..., Run]) -> None:
    run = supervise([child("web"), child("worker")])
    before = run.wait_ready()
    in_the_way = run.folder / "pids.tmp"
    in_the_way.mkdir()
    os.kill(before["worker"], signal.SIGKILL)
    wait_for(lambda: run.output.read_text().count("worker      │ ready") == 2)
    in_the_way.rmdir()
    wait_for(lambda: run.pids()["worker"] != before["worker"])
    assert run.process.poll() is None


def test_a_silent_child_is_restarted(supervise: Callable[..., Run]) -> None:
    once_alive = "notify('READY=1')\nnotify('WATCHDOG=1')\nsignal.pause()"
    talking = "notify('READY=1')\nwhile True: notify('WATCHDOG=1'); time.sleep(0.1)"
    run = supervise(
        [child("beat", once_alive, silent_after_seconds=4), child("web", talking, silent_after_seconds=4)]
    )
    before = run.wait_ready()
    wait_for(lambda: run.pids()["beat"] != before["beat"])
    assert "beat        │ silent for 4 s: restarting it" in run.output.read_text()
    assert "web         │ silent" not in run.output.read_text()


def test_a_child_that_ignores_its_stop_signal_is_killed(supervise: Callable[..., Run]) -> None:
    run = supervise([child("worker", READY_AND_DEAF, stop_seconds=0.3)])
    pid = run.wait_ready()["worker"]
    assert run.stop() == 0
    assert not is_alive(pid)


def test_a_second_signal_stops_at_once(supervise: Callable[..., Run]) -> None:
    run = supervise([child("valkey")], [child("worker", READY_AND_DEAF, stop_seconds=3600)])
    pids = run.wait_ready()
    run.process.send_signal(signal.SIGINT)
    wait_for(lambda: "press Ctrl-C again to stop at once" in run.output.read_text())
    assert run.stop(signal.SIGINT) == 0
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_stop_during_the_start_stops_the_started_children(supervise: Callable[..., Run]) -> None:
    run = supervise([child("valkey")], [child("web", "signal.pause()")])
    wait_for(lambda: "start web" in run.notes())
    assert run.stop() == 0
    assert run.notes() == ["start valkey", "start web", "stop web", "stop valkey"]


def test_output_goes_to_the_log_and_only_warnings_to_the_terminal(supervise: Callable[..., Run]) -> None:
    code = "print('calm'); print('[warning] disk', flush=True)\nnotify('READY=1')\nsignal.pause()"
    run = supervise([child("web", code)])
    run.wait_ready()
    wait_for(lambda: "[warning] disk" in run.output.read_text())
    assert (run.folder / "log" / "web.log").read_text() == "calm\n[warning] disk\n"
    assert "calm" not in run.output.read_text()


DRAINS = """
def drain(*_):
    note("drain")
    notify("STOPPING=1")
    while not os.path.exists(f"{folder}/drained"):
        time.sleep(0.02)
    note("drained")
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
notify("READY=1")
while True: signal.pause()
"""


def test_the_next_process_starts_while_the_last_one_drains(supervise: Callable[..., Run]) -> None:
    run = supervise([child("worker", DRAINS, overlaps=True, stop_seconds=3600)])
    first = run.wait_ready()["worker"]
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: run.pids()["worker"] != first)
    second = run.pids()["worker"]
    assert is_alive(first)
    assert run.notes() == ["start worker", "drain worker", "start worker"]
    (run.folder / "drained").touch()
    wait_for(lambda: not is_alive(first))
    assert is_alive(second)
    assert run.pids()["worker"] == second, "its end starts no third"
    assert run.stop() == 0  # the second one may end at once too
    assert not is_alive(second)


def test_a_stop_waits_for_draining_processes_up_to_their_limit(supervise: Callable[..., Run]) -> None:
    run = supervise([child("valkey")], [child("worker", DRAINS, overlaps=True, stop_seconds=3)])
    first = run.wait_ready()["worker"]
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: run.pids()["worker"] != first)
    second = run.pids()["worker"]
    assert run.stop() == 0
    assert not is_alive(first)
    assert not is_alive(second)
    assert run.notes()[-1] == "stop valkey", "Valkey waits for both"


def test_a_killed_supervisor_leaves_no_draining_process(supervise: Callable[..., Run]) -> None:
    run = supervise([child("worker", DRAINS, overlaps=True, stop_seconds=3600)])
    first = run.wait_ready()["worker"]
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: run.pids()["worker"] != first)
    run.process.kill()
    run.process.wait()
    wait_for(lambda: not is_alive(first) and not is_alive(run.pids()["worker"]), seconds=10)


def test_only_two_processes_of_a_child_drain_at_a_time(supervise: Callable[..., Run]) -> None:
    run = supervise([child("worker", DRAINS, overlaps=True, stop_seconds=3600), child("web")])
    pids = run.wait_ready()
    pid = pids["worker"]
    for _ in range(2):
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda pid=pid: run.pids()["worker"] != pid)
        pid = run.pids()["worker"]
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: run.output.read_text().count("drains (pid") == 3)
    wait_for(lambda: run.notes().count("drain worker") == 3)
    os.kill(pids["web"], signal.SIGKILL)  # its next start is due after that of a fourth worker would be
    wait_for(lambda: run.notes().count("start web") == 2)
    assert run.notes().count("start worker") == 3
    (run.folder / "drained").touch()
    wait_for(lambda: run.notes().count("start worker") == 4)
