"""Whatever is asked in whatever order: the scripts answer like the plain model, and the index stays true."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from gpus.leasing.scripts import Client

from .lease_machine import LeaseMachine


def test_the_scripts_answer_like_the_plain_model(client: Client) -> None:
    run_state_machine_as_test(
        type("Machine", (LeaseMachine,), {"client": client}),
        settings=settings(
            max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
