"""The page, the plots and the document are complete and self-contained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.suite.document import BEGIN, END, write_docs
from benchmarks.suite.options import Options
from benchmarks.suite.page import page
from benchmarks.suite.pictures import pictures
from benchmarks.suite.plots import Axis, Row, axis_for, bars, lines
from benchmarks.suite.report import Report
from tests.benchmarks.made import measured, results

FOUND = results(
    dispatcher=measured(0.95), raw=measured(0.96), huey=measured(0.8, wrong=("1 never run (<4>)",))
)


def report(folder: Path) -> Report:
    found = {name: {**one, "skipped": {"rq": "<b>no</b>"}} for name, one in FOUND.items()}
    return Report(folder, found, Options(report=folder))


def test_the_page_loads_no_external_resource(tmp_path: Path):
    text = page(report(tmp_path).as_json())
    outside = set(re.findall(r"https?://[^\s'\"<)]+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(script|link|img|iframe)\b|@import|url\(", text)
    assert "not met" in text
    assert "1 never run (&lt;4&gt;)" in text
    assert "Left out: rq: &lt;b&gt;no&lt;/b&gt;" in text
    assert "<b>" not in text
    assert "<strong>dispatcher</strong>" in text


@pytest.mark.parametrize("name", pictures(FOUND))
def test_every_plot_is_whole_svg_with_its_values_inside_it(name: str):
    root = ElementTree.fromstring(pictures(FOUND)[name])
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    placed = [
        (x, float(one.attrib[x])) for one in root.iter() for x in ("x", "cx", "y", "cy") if x in one.attrib
    ]
    assert placed
    assert all(0 <= value <= (width if "x" in which else height) for which, value in placed)


def test_a_name_from_outside_can_not_break_a_plot():
    ElementTree.fromstring(bars("a < b", "", [Row("<script>&'\"", [1.0])], Axis(0.0, 2.0)))


def test_equal_values_and_zeros_can_be_drawn():
    ElementTree.fromstring(lines("flat", "", [("one", [(1.0, 0.0), (1.0, 0.0)])], log_x=True))
    assert axis_for([3.0, 3.0]).place(3.0) in (0.0, 1.0)


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis(0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (Axis(0.75, 1.0), [0.75, 0.8, 0.85, 0.9, 0.95, 1.0]),
        (Axis(1.0, 1000.0, log=True), [1.0, 10.0, 100.0, 1000.0]),
    ],
)
def test_ticks_are_round_numbers_inside_the_axis(axis: Axis, ticks: list[float]):
    assert axis.ticks() == pytest.approx(ticks)


def test_a_later_run_replaces_only_what_it_measured(tmp_path: Path):
    report(tmp_path).write()
    later = Report.open(Options(benchmarks=("memory",), report=tmp_path))
    later.add("memory", {**FOUND["memory"], "most_mb": 130.0}, {"rq": "not set up"}, 0.5)
    later.write()
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert kept["results"]["claim"]["most_us"] == 27.0
    assert (kept["results"]["memory"]["most_mb"], kept["results"]["memory"]["skipped"]) == (
        130.0,
        {"rq": "not set up"},
    )
    assert later.missed()
    assert "| worker with 64 threads ≤ 120 MB | 130 MB | **no** |" in later.text()
    assert "utilisation" not in later.text()


def test_the_documents_figures_are_replaced_and_its_text_is_kept(tmp_path: Path):
    report(tmp_path).write()
    document = tmp_path / "benchmarks.md"
    document.write_text(f"# Words\n\n{BEGIN}\nold\n{END}\n\nmore words\n")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "gone.svg").write_text("old")
    written = write_docs(tmp_path, document)
    text = document.read_text()
    assert text.startswith("# Words\n")
    assert text.endswith(f"{END}\n\nmore words\n")
    assert "old" not in text
    assert "| **dispatcher** | 0.9500 |" in text
    links = re.findall(r"\]\((benchmarks/[^)]+)\)", text)
    assert len(links) == len(pictures(FOUND)) == len(written) - 1
    assert all((tmp_path / link).exists() for link in links)
    assert not (tmp_path / "benchmarks" / "gone.svg").exists()
    write_docs(tmp_path, document)
    assert document.read_text() == text
