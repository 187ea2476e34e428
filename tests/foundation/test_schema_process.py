from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.conf import LazySettings

from foundation import foreign_schema
from foundation.foreign_schema import (
    CheckTimedOut,
    NoFreeProcess,
    SchemaProcesses,
    TimeBudget,
    TooMuchMemory,
    compiled,
)

NODE = {"$ref": "#/$defs/n"}
TREE = {
    "$defs": {
        "n": {
            "anyOf": [
                {"type": "integer"},
                {"properties": {"a": NODE}, "required": ["a", "b"]},
                {"properties": {"a": NODE}, "required": ["a", "c"]},
            ]
        }
    },
    **NODE,
}
"""Whose errors are twice as many with each level."""


def unevaluated(levels: int) -> Any:
    """A check takes twice as long with each level, and little memory."""
    schema: Any = {"type": "object"}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": {"type": "integer"}}
    return schema


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.fixture
def processes() -> Iterator[SchemaProcesses]:
    made = SchemaProcesses()
    yield made
    made.close()


def test_a_schema_that_refers_to_itself_is_checked(processes: SchemaProcesses) -> None:
    schema, budget = compiled(TREE), TimeBudget(60.0)
    assert processes.mismatch(schema, {"a": 5, "b": 1}, budget) is None
    found = processes.mismatch(schema, nested(2), budget)
    assert found is not None
    assert "anyOf" in found.text
    assert budget.left < 60.0


@pytest.mark.timeout(60)
def test_a_check_that_takes_too_long_is_ended_and_the_next_one_goes_on(processes: SchemaProcesses) -> None:
    with pytest.raises(CheckTimedOut) as refused:
        processes.mismatch(compiled(unevaluated(30)), {"a": 1}, TimeBudget(0.3))
    assert refused.type is CheckTimedOut
    assert processes.mismatch(compiled(TREE), 5, TimeBudget(60.0)) is None


@pytest.mark.skipif(sys.platform == "darwin", reason="it has no limit of a process's memory")
@pytest.mark.timeout(60)
def test_a_check_that_needs_too_much_memory_is_ended(
    processes: SchemaProcesses, settings: LazySettings
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, schema_check_bytes=300 * 1024 * 1024)
    with pytest.raises(TooMuchMemory):
        processes.mismatch(compiled(TREE), nested(24), TimeBudget(60.0))
    assert processes.mismatch(compiled(TREE), 5, TimeBudget(60.0)) is None


def test_a_check_ends_also_without_its_parent(settings: LazySettings) -> None:
    """The parent would have killed it in time."""
    settings.DISPATCHER = replace(settings.DISPATCHER, schema_check_seconds=0.5)
    process = foreign_schema._start()
    try:
        assert process.stdin is not None
        text = json.dumps(compiled(unevaluated(30)).text)
        process.stdin.write(f'{text}\n{{"a": 1}}\n'.encode())
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGXCPU
    finally:
        foreign_schema._end(process)


def test_long_checks_are_bounded(processes: SchemaProcesses, settings: LazySettings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, schema_checks=1)
    schema = compiled(TREE)
    taken = threading.Event()
    go_on = threading.Event()

    def hold() -> None:
        process = processes._take(60.0)
        taken.set()
        go_on.wait(60)
        processes._put_back(process)

    holding = threading.Thread(target=hold)
    holding.start()
    assert taken.wait(60)
    with pytest.raises(NoFreeProcess):
        processes.mismatch(schema, 5, TimeBudget(0.05))
    go_on.set()
    holding.join()
    assert processes.mismatch(schema, 5, TimeBudget(60.0)) is None


def test_a_process_that_was_killed_is_replaced(processes: SchemaProcesses) -> None:
    schema = compiled(TREE)
    processes.mismatch(schema, 5, TimeBudget(60.0))
    [idle] = processes._idle
    idle.kill()
    idle.wait()
    assert processes.mismatch(schema, 5, TimeBudget(60.0)) is None
