from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from dispatcher_project.cli import main
from dispatcher_project.documentation import api_routes
from dispatcher_project.documentation.api_routes import api_routes_page, document
from dispatcher_project.documentation.commands import HIDDEN, commands_page, groups, own_commands
from dispatcher_project.documentation.decisions import FOLDER, decisions_page
from dispatcher_project.documentation.events import events_page
from dispatcher_project.documentation.lifecycle import lifecycle_page
from dispatcher_project.documentation.model_options import model_options_page
from dispatcher_project.documentation.sweeps import sweeps_page
from dispatcher_project.documentation.written import write_files, written_files
from dispatcher_project.supervisor.data_folder import ROOT
from gpus.registry.model_fields import FIELDS
from gpus.runners.registry import BUILT_IN
from jobs.domain.event_types import EVENT_TYPES
from jobs.domain.states import JOB_MOVES, JobState
from jobs.sweeps.registry import Sweeps


@pytest.mark.parametrize("path", written_files(), ids=lambda path: path.name)
def test_the_file_is_current(path: Path) -> None:
    assert path.read_text() == written_files()[path](), "run `python3 manage.py write_docs`"


def test_pages_are_made_by_a_process_that_has_imported_the_written_modules(tmp_path: Path) -> None:
    module, page = tmp_path / "options.py", tmp_path / "page.md"
    module.write_text("old\n")
    page.write_text("old\n")
    files = {page: lambda: "new\n", module: lambda: "new\n"}
    starts: list[str] = []
    assert list(write_files(files, lambda: starts.append(page.read_text()))) == [module]
    assert (starts, module.read_text()) == (["old\n"], "new\n")
    assert list(write_files(files, lambda: starts.append("again"))) == [module, page]
    assert (starts, page.read_text()) == (["old\n"], "new\n")


@pytest.mark.parametrize("command", ["write_docs", "makemigrations"])
def test_sources_are_written_without_the_key_of_a_dispatcher(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    assert main.settings_for(command, asks_for_help=False) == main.BASE


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


def test_every_route_is_on_its_page() -> None:
    page = api_routes_page()
    for path, operations in document()["paths"].items():
        for method in operations:
            assert f"\n### `{method.upper()} {path.removeprefix('/api/v1')}`\n" in page


def test_every_reference_of_the_document_has_its_schema() -> None:
    found = re.findall(r"#/components/schemas/([\w.-]+)", json.dumps(document()))
    assert {*found} <= {*document()["components"]["schemas"]}, "two types of one name?"


def test_a_route_without_a_section_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(api_routes._TAGS, "workflows")
    with pytest.raises(KeyError, match="workflows"):
        api_routes.api_routes_page()


def test_every_sweep_is_on_its_page_with_what_it_looks_for() -> None:
    page = sweeps_page()
    for name in Sweeps().entries():
        assert f"\n| `{name}` | " in page
    assert "Jobs whose total waiting time exceeds" in page


def test_every_command_is_on_its_page_with_its_arguments() -> None:
    shown = {name for names in groups().values() for name in names}
    assert own_commands() - shown == HIDDEN
    page = commands_page()
    for name in shown:
        assert f"\n### {name}\n" in page
    assert "| `--overlap-hours OVERLAP_HOURS` | `24` | Time a rotated key still works |" in page
    assert "| `--slots SLOTS` | `1` | Concurrent runs |" in page, "1 == True"
    assert "| `--upgrade NAME …` |" in page or "| `--upgrade [NAME …]` |" in page, "of a command's part"
    assert str(ROOT) not in page
    assert "%(" not in page


def test_every_route_of_the_api_is_on_its_page() -> None:
    page = api_routes_page()
    for route in ("POST /queue/submit", "GET /queue/jobs/{job_id}", "PATCH /admin/servers/{server}"):
        assert f"\n### `{route}`\n" in page
    assert "| `model` (required) | body | string | A registered model. |" in page
    assert len(re.findall(r"^Answers: [\d, ]+\.$", page, re.MULTILINE)) == page.count("\n### ")


def written_event_types() -> set[str]:
    """The literal types that the code of jobs/ gives to `log_event` and `_write_event`."""
    found = set()
    for file in (ROOT / "jobs").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("log_event", "_write_event")):
                found |= {one.value for one in node.args[:2] if isinstance(one, ast.Constant)}
    return found


def test_every_event_that_the_code_writes_is_on_its_page() -> None:
    written = written_event_types()
    assert {"adopted", "progress", "partial"} <= written
    assert written <= EVENT_TYPES
    for kind in EVENT_TYPES:
        assert f"\n| `{kind}` | " in events_page()


def test_every_decision_is_in_their_index() -> None:
    records = list(FOLDER.glob("[0-9]*.md"))
    assert len(re.findall(r"^\| \d{4} \| \[..+\]\(", decisions_page(), re.MULTILINE)) == len(records) > 40
