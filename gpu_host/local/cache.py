"""Which models stay in memory. Pure: facts in, decisions out. Memory in MiB, times monotonic seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

NOISE_MB = 64.0
"""A process that holds so little more than at first is as good as a new one."""
HEAT_SECONDS = 600.0
"""A model's use counts less the longer ago it was: a third of it after so long."""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for models. limit: the device's, or what we are allowed of it. others: what processes
    that are not ours hold. own: what our process holds now; base: what it held before its first model."""

    limit: float
    others: float = 0.0
    own: float = 0.0
    base: float = 0.0


@dataclass(frozen=True, slots=True)
class Warm:
    """A loaded model. reserved: what it takes with runs in it. heat: its use, see `cooled`, at
    `last_used`. among_others: what it holds is measured as others'."""

    name: str
    reserved: float
    load_seconds: float
    last_used: float
    heat: float = 1.0
    running: int = 0
    warm_seconds: float = 300.0
    min_resident: bool = False
    among_others: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """There is room once these were unloaded."""

    evict: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unload:
    """By what they reserved they don't make enough room: unload these, and look again."""

    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    """Nothing is loaded any more and our process holds what it should not. why: in words."""

    why: str


@dataclass(frozen=True, slots=True)
class WaitForRuns:
    """There is room once what runs there ended."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """why: in words. for_ever: the device is too small, whoever leaves it."""

    why: str
    for_ever: bool


def make_room(
    model: str, needs: float | None, warm: Sequence[Warm], room: Room, now: float
) -> Load | Unload | Replace | WaitForRuns | NoRoom:
    """needs: None for a model that nobody measured yet; it is loaded alone, so that it can be."""
    idle = sorted((one for one in warm if not one.running), key=lambda one: _worth(one, now))
    if needs is None:
        busy = any(one.running for one in warm)
        return WaitForRuns() if busy else Load(tuple(one.name for one in idle))
    if needs > room.limit - room.base:
        has = max(0.0, room.limit - room.base)
        why = f"{model} needs {needs:.0f} MB, and this device has {has:.0f} MB for models"
        return NoRoom(why, for_ever=True)
    room = replace(room, others=_held_by_others(warm, room))
    if needs > room.limit - room.others - room.base:
        held = f"{room.others:.0f} MB of {room.limit:.0f} MB are held by other processes"
        return NoRoom(f"{model} needs {needs:.0f} MB: {held}", for_ever=False)
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
    for one in reversed(evicted.copy()):  # the most worthy that a larger one made needless stays
        if free - one.reserved >= needs:
            evicted.remove(one)
            free -= one.reserved
    names = tuple(one.name for one in evicted)
    # what others let go of, others may have taken
    return Unload(names) if any(one.among_others for one in evicted) else Load(names)


def idle_ones(warm: Iterable[Warm], now: float) -> list[str]:
    """Those that nobody used for their time."""
    return [
        one.name
        for one in warm
        if not one.running and not one.min_resident and now - one.last_used >= one.warm_seconds
    ]


def ready(warm: Iterable[Warm], waiting: Iterable[str], at_once: Mapping[str, int]) -> list[str]:
    """Models of which one run more would begin without another load, what was used last first. waiting: the
    models of the runs that wait. While one is to be loaded, those that nothing runs may have to leave for
    it."""
    asked = Counter(waiting)
    by_name = {one.name: one for one in sorted(warm, key=lambda one: -one.last_used)}
    coming = [model for model in asked if model not in by_name]
    staying = [name for name, one in by_name.items() if one.running or not coming]
    taken = asked + Counter({name: one.running for name, one in by_name.items()})
    return [model for model in (*staying, *coming) if taken[model] < at_once.get(model, 0)]


def cooled(heat: float, seconds: float) -> float:
    """The use of a model, so many seconds later; each run adds 1."""
    return heat * math.exp(-max(0.0, seconds) / HEAT_SECONDS)


def is_back(own: float, expected: float, tolerance: float) -> bool:
    """Whether an unload gave its memory back."""
    return own <= expected + tolerance


def is_leaking(after_runs: Sequence[float], spare: float, *, least: float, ahead: int = 3) -> bool:
    """after_runs: what the process held after runs of the same loaded models, with nothing running.
    spare: what is left of the device beside that. least: growth below it is noise. True: at this slope the
    memory is gone within `ahead` more runs, or a quarter of it was lost already."""
    if len(after_runs) < 3:
        return False
    grown = after_runs[-1] - after_runs[0]
    if grown < least:
        return False
    slope = grown / (len(after_runs) - 1)
    return spare < slope * ahead or grown > (spare + grown) / 4


def _free(warm: Sequence[Warm], room: Room) -> float:
    """Less what models reserved, also where they do not use it now, and less what they took beyond that."""
    ours = sum(one.reserved for one in warm if not one.among_others)
    held = max(room.own, room.base + ours)
    return room.limit - room.others - held - _among_others(warm)


def _among_others(warm: Sequence[Warm]) -> float:
    return sum(one.reserved for one in warm if one.among_others)


def _held_by_others(warm: Sequence[Warm], room: Room) -> float:
    """What others hold that is none of these models: those reserved theirs, which must not count twice."""
    return max(0.0, room.others - _among_others(warm))


def _worth(one: Warm, now: float) -> tuple[bool, float]:
    """What it would cost to load it again, by how likely that is."""
    return one.min_resident, one.load_seconds * cooled(one.heat, now - one.last_used)
