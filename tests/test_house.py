"""The house's plan, as its imports draw it: no circle of modules, also not of imports for type checkers."""

from __future__ import annotations

import grimp
import pytest

PACKAGES = (
    "dispatcher_project",
    "benchmarks",
    "verification",
    "admin_ui",
    "jobs",
    "gpu_host",
    "gpus",
    "foundation",
    "dispatcher_client",
)


def in_circles(graph: grimp.ImportGraph) -> set[str]:
    """Modules that import themselves by way of others."""
    return {
        module
        for module in graph.modules
        if any(
            module in graph.find_upstream_modules(other)
            for other in graph.find_modules_directly_imported_by(module)
        )
    }


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_no_circle_of_modules(graph: grimp.ImportGraph) -> None:
    assert not in_circles(graph)


def test_a_planted_circle_is_found(graph: grimp.ImportGraph) -> None:
    graph.add_import(importer="foundation.texts", imported="jobs.submission.submit")
    assert {"foundation.texts", "jobs.submission.submit"} <= in_circles(graph)
    graph.remove_import(importer="foundation.texts", imported="jobs.submission.submit")
