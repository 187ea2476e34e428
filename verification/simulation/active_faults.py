"""The faults that are active in the simulated world. The nemesis sets them, the links read them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class ActiveFaults:
    """Chances are per step, 0 to 1. Sets name GPU servers, or processes that are cut off."""

    chance: random.Random
    database_down: bool = False
    commit_reply_lost: float = 0.0
    commit_fails: float = 0.0
    redis_refuses: bool = False
    redis_silent: bool = False
    redis_reply_lost: float = 0.0
    redis_call_doubled: float = 0.0
    broker_down: bool = False
    wake_lost: float = 0.0
    wake_doubled: float = 0.0
    hint_lost: float = 0.0
    hint_doubled: float = 0.0
    """Of the hints that wake advancers of runs."""
    hung: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    http_reply_lost: float = 0.0
    store_down: bool = False
    store_reply_lost: float = 0.0
    store_cut: float = 0.0
    """Of the gets and puts of the store of artifacts, in the middle."""
    store_head_lies: float = 0.0
    """Of the questions for an object that is there."""
    silent_fleets: set[str] = field(default_factory=set)
    """Fleets whose Redis node hangs while those of the others answer."""
    cut_from_redis: set[str] = field(default_factory=set)
    cut_from_database: set[str] = field(default_factory=set)

    def happens(self, chance: float) -> bool:
        """Return True with the probability `chance` (0 to 1), from the seed's random numbers."""
        return chance > 0.0 and self.chance.random() < chance

    def is_database_down(self, process: str) -> bool:
        """Return True if the named process cannot reach the database now."""
        return self.database_down or process in self.cut_from_database

    def blocks_sweeps(self, process: str) -> bool:
        """Return True if an active fault affects a sweep of this process, or its tick."""
        return bool(
            self.is_database_down(process)
            or self.redis_refuses
            or self.redis_silent
            or self.silent_fleets
            or self.broker_down
            or process in self.cut_from_redis
            or max(self.commit_fails, self.commit_reply_lost, self.redis_reply_lost, self.redis_call_doubled)
            > 0.0
        )

    def clear(self) -> None:
        self.database_down = self.redis_refuses = self.redis_silent = self.broker_down = False
        self.commit_fails = self.commit_reply_lost = self.redis_reply_lost = self.redis_call_doubled = 0.0
        self.wake_lost = self.wake_doubled = self.http_reply_lost = 0.0
        self.hint_lost = self.hint_doubled = 0.0
        self.store_down = False
        self.store_reply_lost = self.store_cut = self.store_head_lies = 0.0
        self.hung.clear()
        self.unreachable.clear()
        self.cut_from_redis.clear()
        self.cut_from_database.clear()
