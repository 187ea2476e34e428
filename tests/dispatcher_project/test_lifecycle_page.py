from __future__ import annotations

from dispatcher_project.cli.write_docs import PATH, lifecycle_page
from jobs.domain.states import JOB_MOVES, JobState


def test_the_page_is_current() -> None:
    assert PATH.read_text() == lifecycle_page(), "run `python3 manage.py write_docs`"


def test_every_arrow_and_state_is_on_it() -> None:
    page = lifecycle_page()
    for move in JOB_MOVES:
        assert f"{move.source} --> {move.target}: {move.event}" in page
        assert f"| {move.source} | {move.target} | `{move.event}` | {move.why} |" in page
    for state in JobState:
        assert f"| {state}" in page
