"""Lets Celery's processes say that they are ready and alive (notify.py), under `up` and under systemd.

A worker is ready when it takes tasks, beat when it begins. That beat is alive its scheduler says with every
tick (schedule.py).
"""

from __future__ import annotations

from typing import Any

from celery import signals

from .notify import READY, notify


def connect() -> None:
    signals.worker_ready.connect(_is_ready, weak=False)
    signals.beat_init.connect(_is_ready, weak=False)


def _is_ready(**_: Any) -> None:
    notify(READY)
