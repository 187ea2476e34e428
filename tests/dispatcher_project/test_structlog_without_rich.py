"""The processes that serve load structlog without rich; commands that print tables still can import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dispatcher_project.supervisor.data_folder import ROOT

CHECK = """
import sys
import {module}
import structlog.dev
assert structlog.dev.rich is None and "rich" not in sys.modules
import rich.table
"""


@pytest.mark.parametrize(
    "module", ["dispatcher_project.settings", "dispatcher_project.web", "dispatcher_project.celery_transport"]
)
def test_a_process_loads_structlog_without_rich(module: str) -> None:
    subprocess.run([sys.executable, "-c", CHECK.format(module=module)], cwd=ROOT, check=True)
