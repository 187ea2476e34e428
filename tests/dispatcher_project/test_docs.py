"""What the pages of docs/ point to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text)]
    paths = [ROOT / path for path in re.findall(r"`((?:tests|deploy|docs)/[\w/.-]+)`", text)]
    assert [str(target) for target in links + paths if not target.exists()] == []
