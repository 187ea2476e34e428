"""Twenty causes, fifty cases each, on a real line: the first reason names the cause."""

from __future__ import annotations

import pytest
import redis

from dispatcher_project.embedded import EmbeddedValkey

from .injected import CAUSES, Scene

CASES = 50
RIGHT = 0.95


@pytest.mark.django_db
@pytest.mark.sqlite_only
@pytest.mark.parametrize("cause", list(CAUSES))
def test_the_first_reason_names_the_cause(valkey: EmbeddedValkey, cause: str) -> None:
    client = redis.Redis.from_url(valkey.url)
    code, inject = CAUSES[cause]
    wrong = []
    for seed in range(CASES):
        scene = Scene(client, seed)
        job = inject(scene)
        first = scene.explain(job).reasons[0]
        if first.code != code:
            wrong.append((seed, first.code, first.evidence))
        scene.forget()
    assert len(wrong) <= CASES * (1 - RIGHT), f"{len(wrong)} of {CASES} wrong: {wrong[:5]}"
