"""The site is built from docs/ alone, and its pages ask no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dispatcher_project.documentation import hooks, site
from dispatcher_project.supervisor.data_folder import ROOT

DOCS = ROOT / "docs"


def navigation() -> list[str]:
    return re.findall(r"^ +- .*?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    named = navigation()
    assert len(named) == len(set(named))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert {page for page in pages if not re.match(r"adr/\d", page)} == set(named)


def test_a_page_with_a_diagram_loads_mermaid_from_the_site() -> None:
    page = SimpleNamespace(url="reference/lifecycle.html")
    scripts = '<script src="../assets/bundle.js"></script></body></html>'
    with_diagram = hooks.on_post_page(f'<pre class="mermaid">a</pre>{scripts}', page=page, config=None)
    assert f'</pre><script src="../{hooks.LIBRARY}"></script>{scripts}' in with_diagram
    assert hooks.on_post_page(f"<p>a</p>{scripts}", page=page, config=None) == f"<p>a</p>{scripts}"


def test_mermaid_is_unpacked_into_the_site(tmp_path: Path) -> None:
    packed = tmp_path / f"{hooks.LIBRARY}.gz"
    packed.parent.mkdir()
    packed.write_bytes((DOCS / f"{hooks.LIBRARY}.gz").read_bytes())
    hooks.on_post_build(config={"site_dir": str(tmp_path)})
    library = (tmp_path / hooks.LIBRARY).read_text()
    assert "11.17.2" in library
    assert library.rstrip().endswith(
        'globalThis["mermaid"] = globalThis.__esbuild_esm_mermaid_nm["mermaid"].default;'
    )
    assert not packed.exists()


def test_the_step_says_that_it_is_skipped_without_mkdocs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(site.importlib.util, "find_spec", lambda name: None)
    assert site.main() == 0
    assert capsys.readouterr().out.startswith("skipped: mkdocs-material is not installed")


def test_a_broken_link_fails_the_step(tmp_path: Path) -> None:
    pytest.importorskip("material")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("[there](nowhere.md)")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\ntheme: {name: material, font: false}\n")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr


@pytest.mark.parametrize(
    ("tag", "found"),
    [
        ('<script src="https://unpkg.com/x.js">', 1),
        ('<link rel="stylesheet" href="//fonts.example/css">', 1),
        ('<img alt="" src="http://badge.example/x.svg">', 1),
        ('<a href="https://example.org">', 0),
        ('<script src="../assets/bundle.js">', 0),
    ],
)
def test_what_a_browser_would_load_from_another_host_is_found(tmp_path: Path, tag: str, found: int) -> None:
    (tmp_path / "how-to").mkdir()
    (tmp_path / "how-to/page.html").write_text(f"<html>{tag}</html>")
    assert len(site.loaded_from_elsewhere(tmp_path)) == found
