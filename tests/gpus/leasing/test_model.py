"""Whatever is asked in whatever order: the scripts answer like the plain model, and the index stays true."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from gpus.leasing import scripts
from gpus.leasing.scripts import Client, library_code

from .lease_machine import LeaseMachine


def run(client: Client, most_ordered: int) -> None:
    run_state_machine_as_test(
        type("Machine", (LeaseMachine,), {"client": client, "most_ordered": most_ordered}),
        settings=settings(
            max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_the_scripts_answer_like_the_plain_model(client: Client) -> None:
    run(client, 4)


def test_so_they_do_where_tenants_wait_in_many_lines(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many: more than three, as many as one model may have: the machine has few models."""
    code = library_code()
    assert code.count("MOST_ORDERED = 4") == 1
    monkeypatch.setattr(scripts, "library_code", lambda: code.replace("MOST_ORDERED = 4", "MOST_ORDERED = 3"))
    run(client, 3)
