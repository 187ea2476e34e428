"""Recovery is measured by what really works again: each part counts until it first works."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpus.leasing.values import SlotView
from tests.verification.proving import made
from verification.proving.children import Children
from verification.proving.fleet import Fleet
from verification.proving.ports import free_ports
from verification.proving.records import AttemptRow
from verification.proving.recovery import Measurement, Recovery, RunSigns
from verification.proving.state import Live

POOL, SLOT = "prove-image", "prove-image-1/0"


@dataclass
class Scene:
    """The answers of the state; `then`: what happens at the n-th read."""

    views: dict[str, SlotView] | None = field(default_factory=dict)
    jobs: dict[str, tuple[str, list[AttemptRow]]] = field(default_factory=dict)
    lined_up: dict[str, str] = field(default_factory=dict)
    waits: int = 0
    then: dict[int, Any] = field(default_factory=dict)
    looks: int = 0

    def slot_views(self, servers: Any) -> dict[str, SlotView] | None:
        self.looks += 1
        if self.looks in self.then:
            self.then[self.looks]()
        return self.views

    def attempts_of(self, jobs: Any) -> dict[str, tuple[str, list[AttemptRow]]]:
        return {job: self.jobs[job] for job in jobs if job in self.jobs}

    def queued(self, jobs: Any) -> dict[str, str]:
        return {job: pool for job, pool in self.lined_up.items() if job in jobs}

    def waiting(self, pool: str) -> int:
        return self.waits


def view(state: str = "free", *, attempt: str | None = None, epoch: int = 1) -> SlotView:
    return SlotView(SLOT, POOL, state, False, None, None, attempt, epoch, None, 0.0, None)


def live(**fields: Any) -> Live:
    usual = {
        "job_id": made.JOB, "attempt_id": made.ATTEMPT, "number": 1, "epoch": 1, "worker": "vm:1:x",
        "server": "prove-image-1", "slot": SLOT, "model": "prove-image", "polled": True,
    }  # fmt: skip
    return Live(**(usual | fields))


def signs(tmp_path: Path, *, running: tuple[str, ...] = (), ended: tuple[str, ...] = ()) -> RunSigns:
    fleet = Fleet.planned("prove", Children(tmp_path, {}), tmp_path, free_ports())
    found = RunSigns(fleet)
    found.running = dict.fromkeys(running, "prove-image-1")
    found.ended_well = set(ended)
    return found


def measured(scene: Scene, found: RunSigns, *, seconds: float = 0.25, **more: Any) -> Recovery:
    usual: dict[str, Any] = {"affected": [live()], "killed": [], "slots": [SLOT], "works": {}}
    return Measurement(scene, found, **(usual | more)).run(time.monotonic(), seconds)  # type: ignore[arg-type]


def attempts(**fields: Any) -> tuple[str, list[AttemptRow]]:
    return "running", [made.attempt(state="waiting", **fields)]


def test_a_finished_job_has_recovered(tmp_path):
    scene = Scene(views={SLOT: view()}, jobs={made.JOB: ("completed", [])})
    assert measured(scene, signs(tmp_path)).seconds is not None


def test_a_killed_workers_attempt_has_recovered_only_once_it_was_adopted(tmp_path):
    held = {SLOT: view("leased", attempt=made.ATTEMPT)}
    found = signs(tmp_path, running=(made.ATTEMPT,))
    scene = Scene(views=held, jobs={made.JOB: attempts(epoch=1)})
    assert measured(scene, found).jobs_seconds is not None
    assert measured(scene, found, killed=[live()]).jobs_seconds is None
    adopted = Scene(views=held, jobs={made.JOB: attempts(epoch=2)})
    assert measured(adopted, found, killed=[live()]).jobs_seconds is not None
    again = Scene(views=held, jobs={made.JOB: attempts(id="attempt-2", number=2)})
    assert measured(again, found, killed=[live()]).jobs_seconds is not None


def test_an_attempt_lost_by_its_gpu_has_not_recovered(tmp_path):
    scene = Scene(views={SLOT: view("leased", attempt=made.ATTEMPT)}, jobs={made.JOB: attempts()})
    assert measured(scene, signs(tmp_path)).jobs_seconds is None
    assert measured(scene, signs(tmp_path, ended=(made.ATTEMPT,))).jobs_seconds is not None


def test_a_queued_job_has_recovered_only_if_every_slot_works(tmp_path):
    waiting = {"jobs": {made.JOB: ("queued", [])}, "lined_up": {made.JOB: POOL}}
    full = Scene(views={SLOT: view("leased", attempt="other")}, **waiting)
    assert measured(full, signs(tmp_path, running=("other",))).jobs_seconds is not None
    assert measured(full, signs(tmp_path)).jobs_seconds is None
    assert measured(Scene(views={SLOT: view()}, **waiting), signs(tmp_path)).jobs_seconds is None


def test_a_free_slot_works_if_no_job_waits_for_it(tmp_path):
    assert measured(Scene(views={SLOT: view()}), signs(tmp_path), affected=[]).slots_seconds is not None
    assert measured(Scene(views={SLOT: view()}, waits=1), signs(tmp_path), affected=[]).slots_seconds is None
    for state in ("quarantined", "adoptable", "settling"):
        scene = Scene(views={SLOT: view(state)})
        assert measured(scene, signs(tmp_path), affected=[]).waits_for == [SLOT]
    assert measured(Scene(views=None), signs(tmp_path), affected=[]).slots_seconds is None


def test_a_slot_held_by_a_dead_worker_does_not_work(tmp_path):
    found = signs(tmp_path, running=(made.ATTEMPT,))
    kept = Scene(views={SLOT: view("leased", attempt=made.ATTEMPT)}, jobs={made.JOB: ("failed", [])})
    assert measured(kept, found, killed=[live()]).slots_seconds is None
    assert measured(kept, found).slots_seconds is not None
    over = Scene(views={SLOT: view("leased", attempt=made.ATTEMPT)}, jobs={made.JOB: ("failed", [])})
    assert measured(over, signs(tmp_path, ended=(made.ATTEMPT,))).slots_seconds is None


def test_a_slot_works_when_a_run_began_there_since(tmp_path):
    found = signs(tmp_path)
    gpu = found.fleet.gpus[0]

    def begin() -> None:
        line = {"what": "began", "slot": SLOT, "started": time.time() + 1, "attempt": "a", "run": "r"}
        gpu.log.write_text(json.dumps(line) + "\n")

    scene = Scene(views=None, then={2: begin})
    recovery = measured(scene, found, affected=[], seconds=5.0)
    assert recovery.slots_seconds is not None
    assert recovery.slots_seconds >= 0.1


def test_every_sign_is_waited_for(tmp_path):
    scene = Scene(views={SLOT: view()}, jobs={made.JOB: ("completed", [])})
    recovery = measured(
        scene, signs(tmp_path), works={"now": lambda since: True, "never": lambda since: False}
    )
    assert recovery.signs["now"] is not None
    assert recovery.signs["never"] is None
    assert (recovery.seconds, recovery.waits_for) == (None, ["never"])
