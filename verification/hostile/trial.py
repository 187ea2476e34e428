"""Runs one attack, from its baseline to its verdict."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any

from verification.hostile.attacks.base import Attack
from verification.hostile.environment import RATE, Environment
from verification.hostile.measure import (
    Observations,
    Sample,
    figures,
    limit_of,
    neighbour_findings,
    percentile,
    recovered_at,
)
from verification.hostile.peaks import peaks_mb, reset_peaks
from verification.proving.system import CannotProve

_WAIT_SECONDS = 30.0
_KEPT_QUIET = 600
_WEB = "web"


@dataclass(slots=True)
class AttackResult:
    """The result of one attack. wrongs: empty if the attack was held. skipped: why it was not run."""

    id: str
    title: str
    attacker: str
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
        """``held``, ``FAILS`` or ``skipped``."""
        return "skipped" if self.skipped else "FAILS" if self.wrongs else "held"

    def as_json(self) -> dict[str, Any]:
        return {
            "attack": self.id,
            "title": self.title,
            "attacker": self.attacker,
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
        """Return the line for the terminal."""
        if self.skipped:
            return f"{self.id:<5} skipped  {self.title}: {self.skipped}"
        back = "  –  " if self.recovery is None else f"{self.recovery:4.1f}s"
        p99 = self.neighbour.get("submit_p99_ms", 0)
        text = f"{self.id:<5} {self.verdict:<5} p99 {self.quiet_p99 * 1000:4.0f} → {p99:5.0f} ms  back {back}"
        text += f"  web {self.memory_mb.get(_WEB, 0):4d} MB  {self.title}"
        more = "; ".join(f"{name}: {value}" for name, value in self.figures.items())
        return text + (f"  [{more}]" if more else "") + "".join(f"\n        ! {one}" for one in self.wrongs)


class QuietBaseline:
    """The latest durations of the neighbour's submits without an attack."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def measure(self, env: Environment, seconds: float) -> None:
        """Add the neighbour's submits of the next `seconds` to the pooled baseline. Blocks for that time."""
        begin = time.time()
        time.sleep(seconds)
        self.samples += env.observations().between(begin, time.time()).submits
        del self.samples[:-_KEPT_QUIET]


def play(env: Environment, attack: Attack, quiet: QuietBaseline) -> AttackResult:
    """Run an attack and return its result."""
    result = AttackResult(attack.id, attack.title, attack.attacker)
    result.skipped = attack.skip(env)
    if result.skipped:
        return result
    begun = played = time.time()
    try:
        attack.prepare(env)
        quiet.measure(env, env.options.quiet_seconds)
        result.limit = limit_of(quiet.samples, env.options.floor_seconds)
        result.quiet_p99 = percentile(quiet.samples, 0.99)
        pids = env.pids()
        reset_peaks(pids)
        begun = time.time()
        attack.play(env, time.monotonic() + (env.options.seconds or attack.seconds))
    except CannotProve as error:
        attack.wrong(f"it could not be played: {error}")
    finally:
        played = max(time.time(), begun + 1.0)
        with contextlib.suppress(CannotProve):
            attack.end(env)
    result.seconds = played - begun
    _recover(env, attack, result, max(time.time(), played))
    peaks = peaks_mb(env.pids())
    if result.recovery is None and not env.restart_web_if_needed():
        raise CannotProve(f"the dispatcher did not come back after {attack.id}")
    attack.check(env)
    observations = _seen(env, attack, begun, played)
    result.neighbour = dict(figures(observations))
    result.memory_mb = peaks
    result.answers = dict(attack.answers.most_common(12))
    result.figures = attack.figures
    result.load = os.getloadavg()[0]
    if attack.judges_neighbour:
        result.wrongs += neighbour_findings(
            observations, result.limit, ends_within=attack.ends_within, callbacks_within=attack.ends_within
        )
    result.wrongs += _memory_wrongs(attack, result)
    result.wrongs += attack.wrongs()
    return result


def _recover(env: Environment, attack: Attack, result: AttackResult, ended: float) -> None:
    """Wait for the recovery: from the end of the attack and its clean-up to the start of a quiet second."""
    until = time.time() + _WAIT_SECONDS
    ready_at: float | None = None
    while time.time() < until:
        if ready_at is None and env.is_ready():
            ready_at = time.time()
        at = recovered_at(env.observations().submits, ended, result.limit, RATE)
        if ready_at is not None and at is not None:
            result.recovery = max(at, ready_at) - ended
            break
        time.sleep(0.1)
    if result.recovery is None:
        result.wrongs.append(f"it did not recover within {_WAIT_SECONDS:.0f} s")
    elif result.recovery > attack.recovery_seconds:
        result.wrongs.append(
            f"it took {result.recovery:.1f} s to recover, the bound is {attack.recovery_seconds:.0f} s"
        )


def _seen(env: Environment, attack: Attack, begun: float, ended: float) -> Observations:
    """Return the neighbour's observations during the attack; its last jobs get time to end."""
    until = ended + attack.ends_within
    while (left := env.unfinished(begun, ended)).count and time.time() < until:
        time.sleep(0.1)
    observations = env.observations().between(begun, ended)
    observations.ends += left.ends
    observations.callbacks += left.callbacks
    return observations


def _memory_wrongs(attack: Attack, result: AttackResult) -> list[str]:
    wrongs = []
    for name, size in result.memory_mb.items():
        bound = attack.web_mb if name == _WEB else attack.worker_mb
        if size > bound:
            wrongs.append(f"{name} took {size} MB, the bound is {bound} MB")
    return wrongs
