"""Under any sequence of calls the scripts answer like the plain model, and the index stays consistent."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from gpus.leasing import scripts
from gpus.leasing.library import library_code
from gpus.leasing.scripts import Client
from tests.gpus.leasing import plain_line
from tests.gpus.leasing.lease_machine import LeaseMachine


def run(client: Client, most_ordered: int) -> None:
    run_state_machine_as_test(
        type("Machine", (LeaseMachine,), {"client": client, "most_ordered": most_ordered}),
        settings=settings(
            max_examples=10, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_the_scripts_answer_like_the_plain_model(client: Client) -> None:
    run(client, 4)


FEWER = {
    "MAX_ORDERED = 4": "MAX_ORDERED = 3",
    "LAG_SECONDS, LAG_JOBS = 600, 8": "LAG_SECONDS, LAG_JOBS = 2, 1",
}


def test_scripts_match_the_plain_model_with_small_limits(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many: more than three, as many as one model may have: the machine has few models. Far: a job and two
    seconds, as its jobs are short."""
    code = library_code()
    for usual, here in FEWER.items():
        assert code.count(usual) == 1
        code = code.replace(usual, here)
    monkeypatch.setattr(scripts, "library_code", lambda: code)
    monkeypatch.setattr(plain_line, "LAG_SECONDS", 2)
    monkeypatch.setattr(plain_line, "LAG_JOBS", 1)
    run(client, 3)
