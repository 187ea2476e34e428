"""The models that are loaded in the process, and the memory they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from gpu_host.handlers.code import Declared
from gpu_host.handlers.errors import Failure
from gpu_host.local.cache import (
    Load,
    NoRoom,
    Replace,
    Room,
    Unload,
    WaitForRuns,
    Warm,
    cooled,
    idle_ones,
    is_back,
    is_leaking,
    make_room,
)
from gpu_host.local.device import Gauge
from gpu_host.local.frames import BadFrame, read_failure, read_seconds
from gpu_host.local.process import Overdue, ProcessGone, ProcessOwner


class Patience(Protocol):
    """`gpus.runners.base.Abort`, as far as a wait here needs it."""

    @property
    def fired(self) -> bool: ...
    def set_reader(self, end_read: Callable[[], None] | None) -> None: ...


GPU_LIBRARY_MB = 1000.0


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a `LocalGpu` is told.

    budget_mb: at most so much of the device's memory; None: all. back_seconds, back_mb: how soon and how
    exactly an unload gives its memory back. cancel_seconds: what a handler gets to heed a cancel.
    sample_seconds: what stays after runs is measured at most that often. library_mb: what libraries may keep
    for good in each process once models have run (kernels, workspaces), beside the driver's context; each
    model's first unload there may show a part of it."""

    budget_mb: float | None = None
    back_seconds: float = 10.0
    back_mb: float = 100.0
    cancel_seconds: float = 5.0
    library_mb: float = 0.0
    least_leak_mb: float = 128.0
    sample_seconds: float = 1.0


_LOOK_SECONDS = 0.1
UNLOAD_SECONDS = 60.0
_KEPT_SAMPLES = 100


class LoadedModels:
    """`load`, `unload` and `begin` exchange frames with the process, one at a time and without the lock; all
    other methods are called with the lock of the GPU held.

    tainted: why the process must be replaced once nothing runs in it; empty: it is well. outlived: the
    process has exited, but models held outside it (e.g. in an Ollama server) may still be loaded."""

    def __init__(
        self, owner: ProcessOwner, gauge: Gauge, knobs: Knobs, happened: Callable[..., None]
    ) -> None:
        self.warm: dict[str, Warm] = {}
        self.tainted = ""
        self.loads = 0
        self._owner, self._gauge, self._knobs, self._happened = owner, gauge, knobs, happened
        self._base = self._for_libraries = 0.0
        self._left = self.outlived = False
        self._unloaded: set[str] = set()
        """Models that were unloaded in this process before."""
        self._measured: dict[str, float] = {}
        self._heat: dict[str, tuple[float, float]] = {}
        self._after_runs: list[float] = []
        self._sampled_at = -1e9

    def begin(self) -> None:
        """Start over with a new process. Raises OSError if the device can't be read."""
        self._for_libraries = self._knobs.library_mb
        self._unloaded.clear()
        self.clear()  # the one before may have died between a load and its entry here
        found = self._gauge.read(self._owner.session)
        # what outlived another process can be unloaded, unless that was tried in vain just now
        self._base = found.own if self._left else found.own - found.beside
        self._left = False

    def clear(self) -> None:
        """Forget the models of a process that has exited."""
        self.outlived = any(one.held_outside for one in self._owner.models.values())
        self.warm.clear()
        self._after_runs.clear()
        self.tainted = ""

    # -- questions ----------------------------------------------------------------------------------------

    def is_warm(self, model: str) -> bool:
        return model in self.warm

    def has_capacity(self, model: str) -> bool:
        return self.warm[model].running < self._owner.models[model].at_once

    def plan(self, model: str) -> Load | Unload | Replace | WaitForRuns | NoRoom:
        return make_room(model, self._needs(model), list(self.warm.values()), self._room(), time.monotonic())

    def idle(self) -> list[str]:
        return idle_ones(self.warm.values(), time.monotonic())

    def leaking(self) -> bool:
        room = self._room()
        spare = max(0.0, room.limit - room.others - room.own)
        return is_leaking(self._after_runs, spare, least=self._knobs.least_leak_mb)

    # -- runs -----------------------------------------------------------------------------------------------

    def acquire(self, model: str) -> None:
        one, now = self.warm[model], time.monotonic()
        heat = cooled(one.heat, now - one.last_used) + 1.0
        self.warm[model] = replace(one, running=one.running + 1, heat=heat, last_used=now)

    def release(self, model: str, *, alone: bool) -> None:
        """alone: nothing else runs now, so the memory in use is what remains after runs."""
        one = self.warm.get(model)
        if one is None:
            return
        self.warm[model] = replace(one, running=max(0, one.running - 1), last_used=time.monotonic())
        now = time.monotonic()
        if alone and now - self._sampled_at >= self._knobs.sample_seconds:  # reading costs milliseconds
            self._sampled_at = now
            with suppress(OSError):  # a sample less: what ended here has its end either way
                self._after_runs = [*self._after_runs[-_KEPT_SAMPLES:], self._own()]

    # -- loads ----------------------------------------------------------------------------------------------

    def load(self, model: str) -> Failure | None:
        """Load the model; return its failure, or None. Raises ProcessGone, Overdue, OSError if the device
        can't be read."""
        declared, before = self._owner.models[model], self._own()
        said = self._owner.ask({"do": "load", "model": model}, "loaded", declared.max_load_seconds)
        self.loads += 1
        try:
            failure, seconds = read_failure(said.get("failure")), read_seconds(said.get("seconds"))
        except BadFrame as error:
            self.tainted = f"its process does not speak the protocol: {error}"
            return Failure("run_failed", self.tainted)
        if failure is not None:
            return failure
        try:
            took = max(0.0, self._own() - before)
        except OSError as error:
            self.tainted = f"{model} was loaded and can't be measured: {error}"
            raise
        self._measured[model] = max(took, self._measured.get(model, 0.0))
        self._after_runs.clear()
        self.warm[model] = self._placed(declared, seconds)
        self._happened("model_loaded", model=model, seconds=round(seconds, 3), mb=round(took))
        return None

    def unload(self, models: Sequence[str]) -> None:
        """Unload the models; set `tainted` if their memory is not freed. Raises ProcessGone, Overdue."""
        for model in models:
            one = self.warm.pop(model)
            self._heat[model] = one.heat, one.last_used
            self._owner.ask({"do": "unload", "model": model}, "unloaded", UNLOAD_SECONDS)
            self._happened("model_unloaded", model=model)
        self._after_runs.clear()
        first = not self._unloaded.issuperset(models)
        self._unloaded.update(models)
        try:
            residue = self._await_back()
        except OSError as error:
            self.tainted = f"the device can't be read ({error}) after the unload of {', '.join(models)}"
            return
        self._happened("unload_measured", models=list(models), residue_mb=round(residue), first=first)
        if residue <= self._knobs.back_mb:
            return
        # what a library loads for the first runs of a model it keeps; what is kept again and again is a leak
        if first and residue <= self._for_libraries:
            self._for_libraries -= residue
            self._base += residue
            return
        self.tainted = f"{residue:.0f} MB did not come back after the unload of {', '.join(models)}"

    def _await_back(self) -> float:
        """Wait until unloaded memory is freed, or the time is over; return the residue in MB. Raises OSError
        if the device can't be read by then."""
        expected = self._base + sum(self._held_by(one) for one in self.warm.values())
        until = time.monotonic() + self._knobs.back_seconds
        while True:
            try:
                own = self._own()
                if is_back(own, expected, self._knobs.back_mb) or time.monotonic() >= until:
                    return own - expected
            except OSError:
                if time.monotonic() >= until:
                    raise
            self._owner.raise_if_given_up()
            time.sleep(_LOOK_SECONDS)

    def unload_held_outside(self) -> None:
        """Unload the models that are held outside the process (and have no run) before the process is ended:
        they would stay loaded, whoever loaded them."""
        for name, declared in self._owner.models.items():
            one = self.warm.get(name)
            if not declared.held_outside or (one is not None and one.running):
                continue
            self.warm.pop(name, None)
            self._left = True
            try:
                self._owner.ask({"do": "unload", "model": name}, "unloaded", UNLOAD_SECONDS)
            except (ProcessGone, Overdue):
                return
            self._happened("model_unloaded", model=name)

    # -- memory ---------------------------------------------------------------------------------------------

    def _placed(self, declared: Declared, seconds: float) -> Warm:
        now = time.monotonic()
        heat, at = self._heat.get(declared.name, (0.0, now))
        return Warm(
            name=declared.name,
            reserved=max(declared.vram_mb or 0.0, self._measured[declared.name]),
            load_seconds=seconds,
            last_used=now,
            heat=cooled(heat, now - at),
            warm_seconds=declared.warm_seconds,
            min_resident=declared.min_resident,
            among_others=declared.held_outside == "theirs",
        )

    def _held_by(self, one: Warm) -> float:
        """Return how much of our memory this model may use now, at least."""
        if one.among_others:
            return 0.0
        loaded = self._measured.get(one.name, 0.0)
        return max(loaded, one.reserved) if one.running else loaded

    def _needs(self, model: str) -> float | None:
        declared, measured = self._owner.models[model].vram_mb, self._measured.get(model)
        return max(declared or 0.0, measured or 0.0) if declared or measured is not None else None

    def _room(self) -> Room:
        found, budget = self._gauge.read(self._owner.session), self._knobs.budget_mb
        if budget is None or budget >= found.total:
            return Room(found.total, found.others, found.own, self._base)
        # what others hold takes from us only what is left of the device beside our part
        return Room(budget, max(0.0, found.others + budget - found.total), found.own, self._base)

    def _own(self) -> float:
        return self._gauge.read(self._owner.session).own
