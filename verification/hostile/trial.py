"""One attack from its quiet time to its verdict."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any

from verification.hostile.attacks.base import Attack
from verification.hostile.ground import RATE, Ground
from verification.hostile.measure import (
    Sample,
    Sightings,
    figures,
    limit_of,
    neighbour_wrongs,
    percentile,
    recovered_at,
)
from verification.hostile.peaks import forget, peaks_mb
from verification.proving.system import CannotProve

_PATIENCE_SECONDS = 30.0
_KEPT_QUIET = 600
_WEB = "web"


@dataclass(slots=True)
class Story:
    """What became of one attack. wrongs: empty where it was held. skipped: why it was not played."""

    id: str
    title: str
    who: str
    skipped: str = ""
    seconds: float = 0.0
    limit: float = 0.0
    quiet_p99: float = 0.0
    recovery: float | None = None
    neighbour: dict[str, Any] = field(default_factory=dict)
    memory_mb: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)
    load: float = 0.0

    @property
    def verdict(self) -> str:
        return "skipped" if self.skipped else "FAILS" if self.wrongs else "held"

    def as_json(self) -> dict[str, Any]:
        return {
            "attack": self.id,
            "title": self.title,
            "who": self.who,
            "verdict": self.verdict,
            "wrong": self.wrongs,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
            "quiet_p99_ms": round(self.quiet_p99 * 1000),
            "limit_ms": round(self.limit * 1000),
            "recovery_seconds": None if self.recovery is None else round(self.recovery, 1),
            "neighbour": self.neighbour,
            "peak_mb": self.memory_mb,
            "answers": self.answers,
            "figures": self.figures,
            "load_average": round(self.load, 1),
        }

    def line(self) -> str:
        """For the terminal."""
        if self.skipped:
            return f"{self.id:<5} skipped  {self.title}: {self.skipped}"
        back = "  –  " if self.recovery is None else f"{self.recovery:4.1f}s"
        p99 = self.neighbour.get("submit_p99_ms", 0)
        text = f"{self.id:<5} {self.verdict:<5} p99 {self.quiet_p99 * 1000:4.0f} → {p99:5.0f} ms  back {back}"
        text += f"  web {self.memory_mb.get(_WEB, 0):4d} MB  {self.title}"
        more = "; ".join(f"{name}: {value}" for name, value in self.figures.items())
        return text + (f"  [{more}]" if more else "") + "".join(f"\n        ! {one}" for one in self.wrongs)


class Quiet:
    """What the neighbour's submits took while it was not attacked, the latest of them."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def measure(self, ground: Ground, seconds: float) -> None:
        begin = time.time()
        time.sleep(seconds)
        self.samples += ground.seen().between(begin, time.time()).submits
        del self.samples[:-_KEPT_QUIET]


def play(ground: Ground, attack: Attack, quiet: Quiet) -> Story:
    story = Story(attack.id, attack.title, attack.who)
    story.skipped = attack.skip(ground)
    if story.skipped:
        return story
    begun = played = time.time()
    try:
        attack.prepare(ground)
        quiet.measure(ground, ground.options.quiet_seconds)
        story.limit = limit_of(quiet.samples, ground.options.floor_seconds)
        story.quiet_p99 = percentile(quiet.samples, 0.99)
        pids = ground.pids()
        forget(pids)
        begun = time.time()
        attack.play(ground, time.monotonic() + (ground.options.seconds or attack.seconds))
    except CannotProve as error:
        attack.wrong(f"it could not be played: {error}")
    finally:
        played = max(time.time(), begun + 1.0)
        with contextlib.suppress(CannotProve):
            attack.end(ground)
    story.seconds = played - begun
    _recover(ground, attack, story, max(time.time(), played))
    peaks = peaks_mb(ground.pids())
    if story.recovery is None and not ground.rescue():
        raise CannotProve(f"the dispatcher did not come back after {attack.id}")
    attack.check(ground)
    seen = _seen(ground, attack, begun, played)
    story.neighbour = dict(figures(seen))
    story.memory_mb = peaks
    story.answers = dict(attack.answers.most_common(12))
    story.figures = attack.figures
    story.load = os.getloadavg()[0]
    if attack.neighbour_feels:
        story.wrongs += neighbour_wrongs(
            seen, story.limit, ends_within=attack.ends_within, callbacks_within=attack.ends_within
        )
    story.wrongs += _memory_wrongs(attack, story)
    story.wrongs += attack.wrongs()
    return story


def _recover(ground: Ground, attack: Attack, story: Story, ended: float) -> None:
    """The bound counts from the end of the attack, and of what tidies up after it, to the begin of a quiet
    second."""
    until = time.time() + _PATIENCE_SECONDS
    ready_at: float | None = None
    while time.time() < until:
        if ready_at is None and ground.is_ready():
            ready_at = time.time()
        at = recovered_at(ground.seen().submits, ended, story.limit, RATE)
        if ready_at is not None and at is not None:
            story.recovery = max(at, ready_at) - ended
            break
        time.sleep(0.1)
    if story.recovery is None:
        story.wrongs.append(f"it did not recover within {_PATIENCE_SECONDS:.0f} s")
    elif story.recovery > attack.recovery_seconds:
        story.wrongs.append(
            f"it took {story.recovery:.1f} s to recover, the bound is {attack.recovery_seconds:.0f} s"
        )


def _seen(ground: Ground, attack: Attack, begun: float, ended: float) -> Sightings:
    """What the neighbour saw while it was attacked; its last jobs get their time to end."""
    until = ended + attack.ends_within
    while (left := ground.unfinished(begun, ended)).count and time.time() < until:
        time.sleep(0.1)
    seen = ground.seen().between(begun, ended)
    seen.ends += left.ends
    seen.callbacks += left.callbacks
    return seen


def _memory_wrongs(attack: Attack, story: Story) -> list[str]:
    wrongs = []
    for name, size in story.memory_mb.items():
        bound = attack.web_mb if name == _WEB else attack.worker_mb
        if size > bound:
            wrongs.append(f"{name} took {size} MB, the bound is {bound} MB")
    return wrongs
