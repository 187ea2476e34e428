"""The models that are loaded in the process, and the memory they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from gpu_host.handlers.code import Declared
from gpu_host.handlers.errors import Failure
from gpu_host.handlers.files import CACHE_SECONDS
from gpu_host.local.device import Gauge
from gpu_host.local.eviction import (
    Load,
    NoRoom,
    Replace,
    Room,
    Unload,
    WaitForRuns,
    Warm,
    decayed_use,
    idle_models,
    is_freed,
    is_leaking,
    make_room,
)
from gpu_host.local.frames import BadFrame, read_failure, read_seconds
from gpu_host.local.process import Overdue, ProcessGone, ProcessOwner


class AbortSignal(Protocol):
    """The part of `gpus.runners.base.Abort` that a wait here needs."""

    @property
    def fired(self) -> bool: ...
    def set_reader(self, end_read: Callable[[], None] | None) -> None: ...


GPU_LIBRARY_MB = 1000.0


@dataclass(frozen=True, slots=True)
class LocalGpuOptions:
    """Options of a `LocalGpu`.

    budget_mb: limit of the device memory in use; None: all of it. free_seconds, free_tolerance_mb: how soon
    and how exactly an unload must free its memory. cancel_seconds: how long a handler has to stop after a
    cancel. library_mb: memory that libraries may keep in each process once models have run (kernels,
    workspaces), beside the driver's context; the first unload of each model may leave a part of it.
    min_leak_mb: growth below this is no leak. sample_seconds: shortest time between two memory samples after
    runs. input_cache_seconds: how long an input stays cached that no run uses.
    """

    budget_mb: float | None = None
    free_seconds: float = 10.0
    free_tolerance_mb: float = 100.0
    cancel_seconds: float = 5.0
    library_mb: float = 0.0
    min_leak_mb: float = 128.0
    sample_seconds: float = 1.0
    input_cache_seconds: float = CACHE_SECONDS


DEFAULT_OPTIONS = LocalGpuOptions()

_LOOK_SECONDS = 0.1
UNLOAD_SECONDS = 60.0
_KEPT_SAMPLES = 100


class LoadedModels:
    """The models that are loaded now, and their memory.

    `load`, `unload` and `begin` exchange frames with the process, one at a time and without the lock; all
    other methods are called with the lock of the GPU held. tainted: why the process must be replaced once it
    has no run; empty: it is fine. outlived: the process has exited, but models held outside it (e.g. in an
    Ollama server) may still be loaded.
    """

    def __init__(
        self, owner: ProcessOwner, gauge: Gauge, options: LocalGpuOptions, log_event: Callable[..., None]
    ) -> None:
        self.warm: dict[str, Warm] = {}
        self.tainted = ""
        self.loads = 0
        self._owner, self._gauge, self._knobs, self._log_event = owner, gauge, options, log_event
        self._base = self._library_allowance = 0.0
        self._left = self.outlived = False
        self._unloaded: set[str] = set()
        """Models that were unloaded before in this process."""
        self._measured: dict[str, float] = {}
        self._use_scores: dict[str, tuple[float, float]] = {}
        self._after_runs: list[float] = []
        self._sampled_at = -1e9

    def begin(self) -> None:
        """Reset the state for a new process. Raises OSError if the device can't be read."""
        self._library_allowance = self._knobs.library_mb
        self._unloaded.clear()
        self.clear()  # the last process may have died during a load
        found = self._gauge.read(self._owner.session)
        # memory held outside can still be freed, unless an unload has just failed to
        self._base = found.own if self._left else found.own - found.outside_session
        self._left = False

    def clear(self) -> None:
        """Drop the models of a process that has exited."""
        self.outlived = any(one.held_outside for one in self._owner.models.values())
        self.warm.clear()
        self._after_runs.clear()
        self.tainted = ""

    # -- state --------------------------------------------------------------------------------------------

    def is_warm(self, model: str) -> bool:
        return model in self.warm

    def has_capacity(self, model: str) -> bool:
        """Return True if a loaded model may start one more run."""
        return self.warm[model].running < self._owner.models[model].at_once

    def plan(self, model: str) -> Load | Unload | Replace | WaitForRuns | NoRoom:
        """Return what must happen so that the model can be loaded."""
        return make_room(model, self._needs(model), list(self.warm.values()), self._room(), time.monotonic())

    def idle(self) -> list[str]:
        """Return the models to unload because no run used them for their time."""
        return idle_models(self.warm.values(), time.monotonic())

    def leaking(self) -> bool:
        """Return True if memory grows with each run."""
        room = self._room()
        spare = max(0.0, room.limit - room.others - room.own)
        return is_leaking(self._after_runs, spare, least=self._knobs.min_leak_mb)

    # -- runs -----------------------------------------------------------------------------------------------

    def acquire(self, model: str) -> None:
        """Count one more run of a loaded model."""
        one, now = self.warm[model], time.monotonic()
        use_score = decayed_use(one.use_score, now - one.last_used) + 1.0
        self.warm[model] = replace(one, running=one.running + 1, use_score=use_score, last_used=now)

    def release(self, model: str, *, alone: bool) -> None:
        """Count a run of this model as ended. alone: no other run is active, so memory in use is what remains
        after runs."""
        one = self.warm.get(model)
        if one is None:
            return
        self.warm[model] = replace(one, running=max(0, one.running - 1), last_used=time.monotonic())
        now = time.monotonic()
        if alone and now - self._sampled_at >= self._knobs.sample_seconds:  # a reading takes milliseconds
            self._sampled_at = now
            with suppress(OSError):  # a missing sample does no harm
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
            self.tainted = f"its process broke the protocol: {error}"
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
        self._log_event("model_loaded", model=model, seconds=round(seconds, 3), mb=round(took))
        return None

    def unload(self, models: Sequence[str]) -> None:
        """Unload the models; set `tainted` if their memory is not freed. Raises ProcessGone, Overdue."""
        for model in models:
            one = self.warm.pop(model)
            self._use_scores[model] = one.use_score, one.last_used
            self._owner.ask({"do": "unload", "model": model}, "unloaded", UNLOAD_SECONDS)
            self._log_event("model_unloaded", model=model)
        self._after_runs.clear()
        first = not self._unloaded.issuperset(models)
        self._unloaded.update(models)
        try:
            residue = self._await_freed()
        except OSError as error:
            self.tainted = f"the device can't be read ({error}) after the unload of {', '.join(models)}"
            return
        self._log_event("unload_measured", models=list(models), residue_mb=round(residue), first=first)
        if residue <= self._knobs.free_tolerance_mb:
            return
        # libraries keep memory after the first unload of a model; later residues are leaks
        if first and residue <= self._library_allowance:
            self._library_allowance -= residue
            self._base += residue
            return
        self.tainted = f"{residue:.0f} MB did not come back after the unload of {', '.join(models)}"

    def _await_freed(self) -> float:
        """Wait until unloaded memory is freed, for `free_seconds` at most; return the residue in MB.

        Raises OSError if the device can't be read by then."""
        expected = self._base + sum(self._held_by(one) for one in self.warm.values())
        until = time.monotonic() + self._knobs.free_seconds
        while True:
            try:
                own = self._own()
                if is_freed(own, expected, self._knobs.free_tolerance_mb) or time.monotonic() >= until:
                    return own - expected
            except OSError:
                if time.monotonic() >= until:
                    raise
            self._owner.raise_if_given_up()
            time.sleep(_LOOK_SECONDS)

    def unload_held_outside(self) -> None:
        """Unload the models held outside the process that have no run, before the process is ended.

        They would stay loaded otherwise."""
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
            self._log_event("model_unloaded", model=name)

    # -- memory ---------------------------------------------------------------------------------------------

    def _placed(self, declared: Declared, seconds: float) -> Warm:
        now = time.monotonic()
        use_score, at = self._use_scores.get(declared.name, (0.0, now))
        return Warm(
            name=declared.name,
            reserved=max(declared.vram_mb or 0.0, self._measured[declared.name]),
            load_seconds=seconds,
            last_used=now,
            use_score=decayed_use(use_score, now - at),
            warm_seconds=declared.warm_seconds,
            min_resident=declared.min_resident,
            counted_as_others=declared.held_outside == "theirs",
        )

    def _held_by(self, one: Warm) -> float:
        """Return the MB that this model uses now, at least."""
        if one.counted_as_others:
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
        # other processes reduce our budget only beyond the part of the device that is not ours
        return Room(budget, max(0.0, found.others + budget - found.total), found.own, self._base)

    def _own(self) -> float:
        return self._gauge.read(self._owner.session).own
