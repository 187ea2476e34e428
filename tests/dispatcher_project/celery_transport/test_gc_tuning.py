"""Objects loaded at a process's start are excluded from garbage collection. Runs in separate processes,
because the collector's state is global."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from celery import signals

from dispatcher_project.celery_transport import run

FROZEN = "; import gc; print(gc.isenabled(), gc.get_freeze_count() > 50_000)"


def said_by(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout


@pytest.mark.parametrize("server", ["asgi", "wsgi"])
def test_a_collection_in_the_web_process_skips_objects_loaded_at_its_start(server: str) -> None:
    assert said_by(f"import dispatcher_project.{server}{FROZEN}") == "True True\n"


def test_a_failed_load_leaves_the_collector_enabled() -> None:
    program = """
import gc
from dispatcher_project.celery_transport.gc_tuning import loaded_for_good
try:
    with loaded_for_good():
        assert not gc.isenabled()
        raise LookupError
except LookupError:
    print(gc.isenabled())
"""
    assert said_by(program) == "True\n"


def test_garbage_is_collected_before_freezing() -> None:
    program = """
import weakref
from dispatcher_project.celery_transport.gc_tuning import loaded_for_good
class Thing: pass
with loaded_for_good():
    thing = Thing()
    thing.itself, seen = thing, weakref.ref(thing)
    del thing
print(seen())
"""
    assert said_by(program) == "None\n"


def test_a_worker_freezes_loaded_objects_when_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []

    class Worker:
        exitcode = 0

        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            assert not kept
            signals.worker_ready.send(sender=self)
            assert kept == ["all"]

    monkeypatch.setattr(run, "keep_what_is_loaded", lambda: kept.append("all"))
    monkeypatch.setattr(run.app, "Worker", Worker)
    monkeypatch.setattr(run.platforms, "set_process_title", lambda *_, **__: None)
    stop = run.OrderedStop(grace_seconds=0.0)
    monkeypatch.setattr(stop, "install", lambda: None)
    assert run._run_celery("w", queues=["sweeps"], concurrency=1, ready_file=None, stop=stop) == 0
    assert kept == ["all"]
