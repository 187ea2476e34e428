"""Two dozen causes, many cases each, on a real queue: the first reason names the cause.

The gate plays a few of each; all: `python3 manage.py test -m by_hand tests/jobs/explain`.
"""

from __future__ import annotations

import pytest
import redis

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.jobs.explain.injected import CAUSES, first_reason
from tests.jobs.explain.scene import Scene

FEW, MANY = 2, 50
RIGHT = 0.95


@pytest.mark.django_db
@pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.by_hand)])
@pytest.mark.parametrize("cause", list(CAUSES))
def test_the_first_reason_names_the_cause(valkey: EmbeddedValkey, cause: str, cases: int) -> None:
    client = redis.Redis.from_url(valkey.url)
    code, inject = CAUSES[cause]
    wrong = []
    for seed in range(cases):
        scene = Scene(client, seed)
        first = first_reason(scene, inject)
        if first.code != code:
            wrong.append((seed, first.code, first.evidence))
        scene.forget()
    assert len(wrong) <= cases * (1 - RIGHT), f"{len(wrong)} of {cases} wrong: {wrong[:5]}"
