"""The files that `manage.py write_docs` writes, each with the function that makes its text from code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dispatcher_project.supervisor.data_folder import ROOT

from .api_routes import api_routes_page
from .commands import commands_page
from .decisions import decisions_page
from .events import events_page
from .lifecycle import lifecycle_page
from .model_options import model_options_page
from .settings import settings_page
from .submit_options import client_module
from .sweeps import sweeps_page

REFERENCE = ROOT / "docs" / "reference"


def written_files() -> Mapping[Path, Callable[[], str]]:
    """Return each file's maker."""
    return {
        ROOT / "docs/adr/index.md": decisions_page,
        REFERENCE / "api_routes.md": api_routes_page,
        REFERENCE / "commands.md": commands_page,
        REFERENCE / "events.md": events_page,
        REFERENCE / "lifecycle.md": lifecycle_page,
        REFERENCE / "model_options.md": model_options_page,
        REFERENCE / "settings.md": settings_page,
        REFERENCE / "sweeps.md": sweeps_page,
        ROOT / "dispatcher_client/submit_options.py": client_module,
    }


def write_files(files: Mapping[Path, Callable[[], str]], start_again: Callable[[], None]) -> Iterator[Path]:
    """Write the modules, then the pages; yield each file's path once it is written.

    start_again: called in place of writing the pages if a module has changed, because pages are made from the
    modules that this process has imported.
    """
    modules = [path for path in files if path.suffix == ".py"]
    is_changed = False
    for path in modules:
        text = files[path]()
        is_changed |= path.read_text() != text
        path.write_text(text)
        yield path
    if is_changed:
        start_again()
        return
    for path in [path for path in files if path not in modules]:
        path.write_text(files[path]())
        yield path
