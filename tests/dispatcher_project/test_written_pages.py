from __future__ import annotations

import pytest

import manage
from dispatcher_project.cli.write_docs import DOCS, lifecycle_page, model_options_page, pages, sweeps_page
from gpus.registry.model_fields import FIELDS
from gpus.runners.registry import BUILT_IN
from jobs.domain.states import JOB_MOVES, JobState
from jobs.sweeps.registry import Sweeps


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_the_page_is_current(path) -> None:
    assert path.read_text() == pages()[path](), "run `python3 manage.py write_docs`"
    assert path.parent in (DOCS / "reference", DOCS.parent / "dispatcher_client")


@pytest.mark.parametrize("command", ["write_docs", "makemigrations"])
def test_sources_are_written_without_the_key_of_a_dispatcher(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    assert manage._settings(command, asks_for_help=False) == manage.BASE


def test_every_arrow_and_state_is_on_it() -> None:
    page = lifecycle_page()
    for move in JOB_MOVES:
        assert f"{move.source} --> {move.target}: {move.event}" in page
        assert f"| {move.source} | {move.target} | `{move.event}` | {move.why} |" in page
    for state in JobState:
        assert f"| {state}" in page


def test_every_option_and_runner_is_on_its_page() -> None:
    page = model_options_page()
    for name in FIELDS:
        assert f"\n| `{name}` | " in page
    for runner in BUILT_IN:
        assert f"\n| `{runner.name}` | {runner.summary} |" in page


def test_every_sweep_is_on_its_page_with_what_it_looks_for() -> None:
    page = sweeps_page()
    for name in Sweeps().entries():
        assert f"\n| `{name}` | " in page
    assert "Forgotten jobs: they waited longer" in page
