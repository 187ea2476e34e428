"""New runs and callbacks are signs of recovery; at the end of a trial none is awaited."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from verification.proving.trial import Trial

MENDED_AT = 100.0


def seen(*, video_began: float, video_waits: int | None) -> bool:
    gpus = [SimpleNamespace(pool=pool, slot_names=[f"{pool}-1/0"]) for pool in ("image", "video")]
    signs = SimpleNamespace(last_began={"image-1/0": 99.0, "video-1/0": 99.0})
    signs.read = lambda: signs.last_began.update({"image-1/0": 101.0, "video-1/0": video_began})
    trial: Any = SimpleNamespace(
        fleet=SimpleNamespace(gpus=gpus),
        signs=signs,
        state=SimpleNamespace(waiting=lambda pool: {"image": 5, "video": video_waits}[pool]),
    )
    return Trial.runs_begin_since(trial, MENDED_AT)


@pytest.mark.parametrize(
    ("video_began", "video_waits", "well"),
    [(102.0, 3, True), (99.0, 3, False), (99.0, 0, True), (99.0, None, False)],
    ids=["a run begins everywhere", "one pool stands", "no job waits there", "the database does not say"],
)
def test_runs_must_begin_in_every_pool_with_waiting_jobs(
    video_began: float, video_waits: int | None, well: bool
) -> None:
    assert seen(video_began=video_began, video_waits=video_waits) is well


@pytest.mark.parametrize(
    ("called_at", "mended", "pending", "well"),
    [
        (1.0, 0.0, (3, 0.0), True),
        (-1.0, 0.0, (0, 0.0), False),
        (-1.0, -60.0, (0, 0.0), True),
        (-61.0, -60.0, (1, 0.0), False),
        (-61.0, -60.0, None, False),
    ],
    ids=[
        "a call came",
        "too early to tell",
        "no callback is due",
        "one is owed",
        "the database does not say",
    ],
)
def test_a_callback_must_arrive_while_one_is_due(
    called_at: float, mended: float, pending: tuple[int, float] | None, well: bool
) -> None:
    now = time.time()
    trial: Any = SimpleNamespace(
        receiver=SimpleNamespace(last_at=lambda: now + called_at),
        state=SimpleNamespace(pending_callbacks=lambda: pending),
    )
    assert Trial.called_back_since(trial, now + mended) is well
