"""Decides which models stay in memory. Pure functions. Memory in MiB, times in monotonic seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

NOISE_MB = 64.0
"""A process that uses at most this much more than at its start is as good as a new one."""
USE_DECAY_SECONDS = 600.0
"""After this time a model's use counts for a third."""


@dataclass(frozen=True, slots=True)
class Room:
    """The memory for models. limit: of the device, or our budget. others: used by processes that are not
    ours. own: used by our process now; base: used by it before its first model."""

    limit: float
    others: float = 0.0
    own: float = 0.0
    base: float = 0.0


@dataclass(frozen=True, slots=True)
class Warm:
    """A loaded model. reserved: its memory with runs in it. use_score: see `decayed_use`, as of `last_used`.
    counted_as_others: its memory is measured as that of other processes."""

    name: str
    reserved: float
    load_seconds: float
    last_used: float
    use_score: float = 1.0
    running: int = 0
    warm_seconds: float = 300.0
    min_resident: bool = False
    counted_as_others: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Unload the models in `evict`, then load."""

    evict: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unload:
    """The reserved memory of these models is not enough: unload them, then decide again."""

    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the process: no model is loaded, and its memory use is too high. why: in words."""

    why: str


@dataclass(frozen=True, slots=True)
class WaitForRuns:
    """Wait: there may be memory once a run has ended."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no memory for the model. why: in words. permanent: the device is too small even when empty."""

    why: str
    permanent: bool


def make_room(
    model: str, needs: float | None, warm: Sequence[Warm], room: Room, now: float
) -> Load | Unload | Replace | WaitForRuns | NoRoom:
    """Decide how to make room for a model.

    needs: its memory; None if it was never measured: then it is loaded alone, to measure it. warm: the loaded
    models."""
    idle = sorted((one for one in warm if not one.running), key=lambda one: _reload_cost(one, now))
    if needs is None:
        busy = any(one.running for one in warm)
        return WaitForRuns() if busy else Load(tuple(one.name for one in idle))
    if needs > room.limit - room.base:
        has = max(0.0, room.limit - room.base)
        why = f"{model} needs {needs:.0f} MB, and this device has {has:.0f} MB for models"
        return NoRoom(why, permanent=True)
    room = replace(room, others=_held_by_others(warm, room))
    if needs > room.limit - room.others - room.base:
        held = f"{room.others:.0f} MB of {room.limit:.0f} MB are held by other processes"
        return NoRoom(f"{model} needs {needs:.0f} MB: {held}", permanent=False)
    free = _free(warm, room)
    evicted: list[Warm] = []
    for one in idle:
        if free >= needs:
            break
        evicted.append(one)
        free += one.reserved
    if free < needs:
        if any(one.running for one in warm):
            return WaitForRuns()
        if idle:
            return Unload(tuple(one.name for one in idle))
        beyond = room.own - room.base
        if beyond > NOISE_MB:
            return Replace(f"{beyond:.0f} MB are held by the process without any model")
    for one in reversed(evicted.copy()):  # keep the most valuable models whose memory is not needed after all
        if free - one.reserved >= needs:
            evicted.remove(one)
            free -= one.reserved
    names = tuple(one.name for one in evicted)
    # memory freed outside may have been taken by other processes
    return Unload(names) if any(one.counted_as_others for one in evicted) else Load(names)


def idle_models(warm: Iterable[Warm], now: float) -> list[str]:
    """Return the models that were unused for their `warm_seconds`."""
    return [
        one.name
        for one in warm
        if not one.running and not one.min_resident and now - one.last_used >= one.warm_seconds
    ]


def ready(warm: Iterable[Warm], waiting: Iterable[str], at_once: Mapping[str, int]) -> list[str]:
    """Return the models that can start one more run without a load, the most recently used first.

    waiting: the models of the runs that wait. While one of them must be loaded, a model without a run does
    not count: it may have to be unloaded."""
    requested = Counter(waiting)
    by_name = {one.name: one for one in sorted(warm, key=lambda one: -one.last_used)}
    to_load = [model for model in requested if model not in by_name]
    staying = [name for name, one in by_name.items() if one.running or not to_load]
    taken = requested + Counter({name: one.running for name, one in by_name.items()})
    return [model for model in (*staying, *to_load) if taken[model] < at_once.get(model, 0)]


def decayed_use(use_score: float, seconds: float) -> float:
    """Return a model's use score after so many seconds; each run adds 1."""
    return use_score * math.exp(-max(0.0, seconds) / USE_DECAY_SECONDS)


def is_freed(own: float, expected: float, tolerance: float) -> bool:
    """Return True if an unload freed its memory."""
    return own <= expected + tolerance


def is_leaking(after_runs: Sequence[float], spare: float, *, least: float, ahead: int = 3) -> bool:
    """Return True if, at the current slope, memory runs out within `ahead` more runs, or a quarter of it is
    lost.

    after_runs: own memory after each run of the same loaded models, with no run active. spare: free memory
    beside that. least: growth below it is noise."""
    if len(after_runs) < 3:
        return False
    grown = after_runs[-1] - after_runs[0]
    if grown < least:
        return False
    slope = grown / (len(after_runs) - 1)
    return spare < slope * ahead or grown > (spare + grown) / 4


def _free(warm: Sequence[Warm], room: Room) -> float:
    """Return free memory: the limit less the reserved memory of models, used or not, and less their use
    beyond that."""
    ours = sum(one.reserved for one in warm if not one.counted_as_others)
    held = max(room.own, room.base + ours)
    return room.limit - room.others - held - _counted_as_others(warm)


def _counted_as_others(warm: Sequence[Warm]) -> float:
    return sum(one.reserved for one in warm if one.counted_as_others)


def _held_by_others(warm: Sequence[Warm], room: Room) -> float:
    """Return the memory of other processes, without our models that are counted there."""
    return max(0.0, room.others - _counted_as_others(warm))


def _reload_cost(one: Warm, now: float) -> tuple[bool, float]:
    """Return the cost of loading the model again, times how likely that is."""
    return one.min_resident, one.load_seconds * decayed_use(one.use_score, now - one.last_used)
