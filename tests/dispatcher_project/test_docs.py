"""What the pages of docs/ point to exists, and the commands that they name take what they are given there."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from dispatcher_project.supervisor.children import DEMO_SLOTS
from dispatcher_project.supervisor.data_folder import ROOT
from gpu_host.node.faults import KINDS
from gpu_host.node.simulator import DEFAULT_SECONDS
from verification.hostile.options import parser as hostile_parser
from verification.proving.options import HOSTILE

_COMMAND = re.compile(
    r"(?:manage\.py|dispatcher-manage|run --rm migrate) ([a-z_]+)((?: +(?!#|&|\||>)[^\s`]+)*)"
)
_WITHOUT_PARSER = {"help", "version", "test"}
"""Django's own; what hands its arguments to pytest."""
_FOLDERS = (
    "(?:tests|deploy|docs|examples|admin_ui|benchmarks|dispatcher_client|dispatcher_project|foundation|gpu_host|gpus"
    "|jobs|verification)"
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"^(<<<<<<<|=======|>>>>>>>)( |$)", text, re.MULTILINE), "a merge was not resolved"
    links = [page.parent / link for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text)]
    # *.env is what operators write for themselves
    paths = [ROOT / path for path in re.findall(rf"`({_FOLDERS}/[\w/.-]+(?<!\.env))`", text)]
    assert [str(target) for target in links + paths if not target.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_curl_that_reaches_nothing_says_so(page: Path) -> None:
    """-s alone prints nothing at all; only a loop that waits for a server is silent."""
    assert re.findall(r"(?<!until )\bcurl (?!-sSN? |-fsSL? ).*", page.read_text()) == []


def test_pages_that_code_names_exist() -> None:
    """In docstrings, comments, help and error texts, which no link checker reads."""
    named: dict[str, Path] = {}
    for top in (*packages_in(ROOT), "deploy"):
        for file in (ROOT / top).rglob("*.*"):
            if file.suffix in (".py", ".lua", ".yaml", ".json", ".example", ".html"):
                text = file.read_text()
                named |= dict.fromkeys(re.findall(r"(?<![\w/.])docs/(?:[\w-]+/)*[\w-]+\.md", text), file)
    assert {page: str(file) for page, file in named.items() if not (ROOT / page).exists()} == {}
    assert len(named) > 20


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Each `manage.py NAME …`, however it is started, with its arguments, those in brackets too."""
    found = _COMMAND.findall(text.replace("\\\n", " "))
    return [(name, shlex.split(re.sub(r"[][]", "", words))) for name, words in found]


def parser_of(name: str, words: list[str]) -> ArgumentParser:
    if name == "prove" and HOSTILE in words:
        words.remove(HOSTILE)
        return hostile_parser()
    return load_command_class(get_commands()[name], name).create_parser("manage.py", name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_take_what_the_pages_give_them(page: Path) -> None:
    for name, words in commands(page.read_text()):
        if name not in _WITHOUT_PARSER:
            parser = parser_of(name, words)
            if words != ["--help"]:  # every command takes it, and it alone
                parser.parse_args(words)


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    text = (
        "`manage.py up --no-demo`, or\n```\nmanage.py keys [--tenant acme]   # all\ndispatcher-manage x && y"
    )
    assert commands(text) == [("up", ["--no-demo"]), ("keys", ["--tenant", "acme"]), ("x", [])]


def folder_table() -> dict[str, set[str]]:
    """The overview's table: the folders that each folder's line names."""
    text = (ROOT / "docs/explanation/overview.md").read_text()
    text = text.split("## Where things are")[1].split("\n## ")[0]
    lines = re.findall(r"^\| `(\w+)/` \|(.*)$", text, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)/`", line)) for name, line in lines}


def packages_in(folder: Path) -> set[str]:
    """But those that Django prescribes."""
    return {file.parent.name for file in folder.glob("*/__init__.py")} - {
        "migrations",
        "management",
        "templatetags",
        "formats",
    }


def test_the_overview_names_every_folder() -> None:
    table = folder_table()
    assert packages_in(ROOT) | {"deploy", "docs", "examples"} == set(table)
    for name in set(table) - {"benchmarks", "deploy", "docs", "examples", "tests"}:
        named = {one for one in table[name] if one != "management"}
        assert (name, named) == (name, packages_in(ROOT / name))


def where_is_rows() -> list[tuple[str, str, str]]:
    """(behaviour, files, test) of each line of the page "Where is …?"."""
    text = (ROOT / "docs/reference/where_is.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (`.+?`) \| (`.+?`) \|$", text, re.MULTILINE)
    assert len(rows) == text.count("\n| ") - 2 * text.count("| Behaviour |")
    return rows


def test_where_is_names_files_and_tests_that_exist() -> None:
    rows = where_is_rows()
    assert len(rows) > 50
    assert len({behaviour for behaviour, _, _ in rows}) == len(rows)
    for behaviour, files, test in rows:
        paths, proof = re.findall(r"`([^`]+)`", files), test.strip("`")
        assert [path for path in [*paths, proof] if not (ROOT / path).exists()] == [], behaviour
        assert not any(path.startswith("tests/") for path in paths), behaviour
        assert re.fullmatch(r"tests/(?:\w+/)*test_\w+\.py", proof), behaviour


def test_the_page_of_up_has_the_simulated_models() -> None:
    text = (ROOT / "docs/reference/up.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\d.]+) \|", text, re.MULTILINE)
    assert {name: (int(slots), float(seconds)) for name, slots, seconds in rows} == {
        name: (slots, DEFAULT_SECONDS[name]) for name, slots in DEMO_SLOTS.items()
    }
    faults = re.findall(r'`"fault": "(\w+)"`', text)
    assert faults
    assert set(faults) <= KINDS
