"""Every parser of foreign bytes raises only declared errors, in bounded time and memory.

`FUZZ_CASES=100000 python3 manage.py test tests/fuzz` tries that many inputs for each parser, different ones
each time."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import api, client, configuration, gpu_servers
from tests.fuzz.mutate import variations
from tests.fuzz.parser import Parser

CASES = int(os.environ.get("FUZZ_CASES", "0"))
IN_THE_GATE = 200
VARIATIONS = 250 if CASES else 25
MAX_SECONDS = 5.0
"""Of processor time for one input, of 20 kB at most."""
MAX_KILOBYTES = 400_000
"""How much a parser's whole run may add to the process."""
PARSERS = [*gpu_servers.PARSERS, *api.PARSERS, *client.PARSERS, *configuration.PARSERS]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_parser_raises_only_declared_errors(parser: Parser) -> None:
    slowest, count, before = 0.0, 0, _most_kilobytes()

    @given(document=parser.inputs, seed=st.integers(0, 2**64 - 1))
    @settings(
        max_examples=(CASES or IN_THE_GATE) // VARIATIONS,
        deadline=None,
        database=None,
        derandomize=not CASES,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    def try_all(document: Any, seed: int) -> None:
        nonlocal slowest, count
        for one in variations(document, seed, VARIATIONS):
            count += 1
            began = time.thread_time()
            try:
                parser.call(one)
            except parser.raises:
                pass
            except BaseException as error:
                error.add_note(f"{parser.name} read {one!r:.2000}")
                raise
            slowest = max(slowest, time.thread_time() - began)

    began = time.perf_counter()
    try_all()
    if CASES:
        took = time.perf_counter() - began
        sys.stderr.write(
            f"fuzz: {parser.name}: {count} cases in {took:.1f} s, slowest {slowest * 1000:.1f} ms\n"
        )
    assert slowest < MAX_SECONDS
    assert _most_kilobytes() - before < MAX_KILOBYTES


def _most_kilobytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most // 1024 if sys.platform == "darwin" else most
