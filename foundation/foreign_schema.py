"""JSON Schemas (2020-12) from outside, with a bounded cost of checks.

Patterns run on a linear-time engine. The cost of a check is bounded before it begins: the schema's values
with every reference followed, times the values of the payload. A check that may cost more, or whose schema
refers to itself or has an `unevaluated…`, runs in a process that can be killed (`SchemaProcesses`): the
library holds the GIL.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from django.conf import settings
from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

from foundation.json_paths import pointer
from foundation.json_text import Bounds, NotReadable, canonical_json, check_bounds
from foundation.stored_schema import StoredSchema

CHEAP_STEPS = 2_000_000
"""At about 10 ns each; a check with more steps runs in another process."""
_SMALL_PATTERN_BYTES = 32 * 1024
"""Compiled size. A larger one may cost as much as a thousand steps for each character."""
_PATTERN_BYTES = 10 * 1024 * 1024
"""Compiled size, the library's default. 64 KiB of schema hold 2,000 such patterns: a minute and 11 GB."""
_ALL_PATTERNS_BYTES = 128 * 1024 * 1024
_DEFINITIONS = ("$defs", "definitions")
_UNBOUNDED = ("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")
"""To find unevaluated members, the library checks the neighbouring schemas again: twice the cost per level.
"""
_LONGEST_TEXT = 200
_LONGEST_VALUE = 80
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

Schema = Mapping[str, Any] | bool
_CHILD = """
import json, resource, sys, time
from contextlib import suppress
from functools import lru_cache

max_bytes, max_seconds = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
with suppress(ValueError, OSError):  # macOS has no such limit
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

def refuse(uri):
    raise ValueError(uri)

@lru_cache(maxsize=16)
def compiled(text):
    schema = json.loads(text)
    return Draft202012Validator(
        schema, retriever=refuse, pattern_options=RegexOptions(), mask="The value"
    )

for line in sys.stdin.buffer:
    # the parent kills overlong checks; this limit applies if the parent has died
    last_second = int(time.process_time()) + max_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (last_second, resource.RLIM_INFINITY))
    payload = json.loads(sys.stdin.buffer.readline())
    validator, mismatch = compiled(json.loads(line)), None
    if not validator.is_valid(payload):
        try:
            validator.validate(payload)
        except ValidationError as error:
            mismatch = [list(error.instance_path), error.message[:200]]
    sys.stdout.write(json.dumps(mismatch) + "\\n")
    sys.stdout.flush()
"""
_OUT_OF_TIME = (-signal.SIGKILL, -signal.SIGXCPU)
"""Return codes. A process out of memory exits on its own: the library aborts, Python raises."""


class SchemaRefused(ValueError):
    """The schema can't be used. path: the place in the schema."""

    def __init__(self, why: str, path: tuple[object, ...] = ()) -> None:
        super().__init__(why)
        self.path = path


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first place where a value does not match. path: from the value's root."""

    path: tuple[object, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ForeignSchema:
    """A checked and compiled schema.

    text: canonical. values, patterns: number, with every reference followed. validator: None if each check
    must run in another process."""

    text: str
    values: int
    patterns: int
    validator: Draft202012Validator | None

    def steps(self, payload: bytes) -> float:
        """Return the largest cost of a check of this payload, in steps; infinite if it has no bound."""
        if self.validator is None:
            return float("inf")
        values = 1 + sum(map(payload.count, (b",", b"[", b"{")))
        return self.values * values + self.patterns * len(payload)

    def mismatch(self, payload: Any) -> Mismatch | None:
        """Check a payload in this thread; return the first mismatch, or None."""
        assert self.validator is not None
        return first_mismatch(self.validator, payload)


def compiled(schema: Schema | StoredSchema) -> ForeignSchema:
    """Return the schema, checked and compiled: a stored one once, another one once per text. Raises
    SchemaRefused."""
    if not isinstance(schema, StoredSchema):
        return _compiled(canonical_json(schema), *_limits())
    if schema.compiled_form is None:
        schema.compiled_form = _compiled(canonical_json(schema.document), *_limits())
    found: ForeignSchema = schema.compiled_form
    return found


def _limits() -> tuple[int, int, int]:
    limits = settings.DISPATCHER
    return limits.schema_bytes, limits.schema_depth, limits.schema_values


@lru_cache(maxsize=128)
def _compiled(text: str, max_bytes: int, depth: int, max_values: int) -> ForeignSchema:
    if len(text.encode()) > max_bytes:
        raise SchemaRefused(f"A schema may have up to {max_bytes} bytes (DISPATCHER_SCHEMA_BYTES).")
    try:
        check_bounds(text.encode(), Bounds(depth=depth))
    except NotReadable:
        raise SchemaRefused(
            f"A schema may be nested up to {depth} levels deep (DISPATCHER_SCHEMA_DEPTH)."
        ) from None
    size = _Size(json.loads(text), depth, max_values)
    validator = make_validator(text, pattern_bytes=_max_pattern_bytes(size.patterns))
    is_small = not size.is_unbounded and _has_small_patterns(text)
    return ForeignSchema(text, size.values, size.patterns, validator if is_small else None)


def _max_pattern_bytes(patterns: int) -> int:
    return min(_PATTERN_BYTES, _ALL_PATTERNS_BYTES // max(patterns, 1))


def make_validator(text: str, *, pattern_bytes: int | None = None) -> Draft202012Validator:
    """Compile a schema. pattern_bytes: limit of a compiled pattern. Raises SchemaRefused."""
    try:
        return Draft202012Validator(
            json.loads(text),
            retriever=_refuse_to_fetch,
            pattern_options=RegexOptions(size_limit=pattern_bytes),
            mask="The value",
        )
    except ValidationError as error:
        path: tuple[object, ...] = tuple(error.instance_path)
        if error.kind.name == "format":
            raise SchemaRefused(
                "Not a regular expression of the linear-time engine, which has no look-around and no "
                "back-references, or too large a one: all patterns of a schema may have "
                f"{_ALL_PATTERNS_BYTES} bytes, compiled.",
                path,
            ) from None
        path, why = _fault(error)
        place = pointer(path)
        where = f"{place[:_LONGEST_TEXT]}: " if place else ""
        raise SchemaRefused(f"Not a JSON Schema (2020-12): {where}{why[:_LONGEST_TEXT]}", path) from None
    except (ValueError, RecursionError) as error:
        raise SchemaRefused(f"Not a JSON Schema (2020-12): {str(error)[:_LONGEST_TEXT]}") from None


def _fault(error: ValidationError) -> tuple[tuple[object, ...], str]:
    """Return the place in the schema that is wrong, and why. Only of `type` the standard has alternatives, a
    name or a list, for which the library says no more than that none matches."""
    path, value = tuple(error.instance_path), error.instance
    if error.kind.name != "anyOf":
        return path, error.message
    if isinstance(value, list):
        for at, one in enumerate(value):
            if one not in _TYPES:
                return (*path, at), _no_type(one)
        return path, "a type is named twice" if value else "the list names no type"
    return path, _no_type(value)


def _no_type(value: Any) -> str:
    shown = repr(value) if isinstance(value, str) else canonical_json(value)
    return f"{shown[:_LONGEST_VALUE]} is not a type: {', '.join(_TYPES)}"


def first_mismatch(validator: Draft202012Validator, payload: Any) -> Mismatch | None:
    """Return the first mismatch only: there may be a million."""
    try:
        validator.validate(payload)
    except ValidationError as error:
        return Mismatch(tuple(error.instance_path), error.message[:_LONGEST_TEXT])
    return None


def _has_small_patterns(text: str) -> bool:
    try:
        make_validator(text, pattern_bytes=_SMALL_PATTERN_BYTES)
    except SchemaRefused:
        return False
    return True


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"{uri} is outside of the schema")


class _Size:
    """The size of a schema with every reference followed. Raises SchemaRefused."""

    def __init__(self, schema: Any, depth: int, most: int) -> None:
        self.values = self.patterns = 0
        self.is_unbounded = False
        self._depth, self._most = depth, most
        self._schema = schema
        self._under_way: list[int] = []
        if isinstance(schema, dict):  # definitions count where they are referenced
            self._walk({name: part for name, part in schema.items() if name not in _DEFINITIONS}, 1)

    @cached_property
    def _resolver(self) -> Any:
        """Made for the first reference: few schemas have one, and every process would import its library."""
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        return Registry().with_resource("", DRAFT202012.create_resource(self._schema)).resolver()

    def _walk(self, item: Any, level: int) -> None:
        self.values += 1
        if self.values > self._most:
            raise SchemaRefused(
                f"A schema may have up to {self._most} values, counted again wherever a $ref leads to them "
                "(DISPATCHER_SCHEMA_VALUES)."
            )
        if level > self._depth:
            raise SchemaRefused(
                f"A schema may be nested up to {self._depth} levels deep, through its $refs "
                "(DISPATCHER_SCHEMA_DEPTH)."
            )
        if isinstance(item, dict):
            self._walk_object(item, level)
        for part in _parts(item):
            self._walk(part, level + 1)

    def _walk_object(self, item: dict[str, Any], level: int) -> None:
        self.patterns += isinstance(item.get("pattern"), str)
        if isinstance(item.get("patternProperties"), dict):
            self.patterns += len(item["patternProperties"])
        if any(name in item for name in _UNBOUNDED):
            self.is_unbounded = True
        if level > 1 and isinstance(item.get("$id"), str):
            raise SchemaRefused("Only the root of a schema may have an $id.")
        if isinstance(item.get("$ref"), str):
            self._follow(item["$ref"], level)

    def _follow(self, reference: str, level: int) -> None:
        from referencing.exceptions import Unresolvable

        try:
            if not reference.startswith("#"):
                raise SchemaRefused(_unresolved_reference(reference))
            target = self._resolver.lookup(reference).contents
        except Unresolvable:
            raise SchemaRefused(_unresolved_reference(reference)) from None
        if reference in ("#", "#/") or id(target) in self._under_way:
            self.is_unbounded = True
            return
        self._under_way.append(id(target))
        self._walk(target, level + 1)
        self._under_way.pop()


def _parts(item: Any) -> Iterator[Any]:
    if isinstance(item, dict):
        yield from item.values()
    elif isinstance(item, list):
        yield from item


def _unresolved_reference(reference: str) -> str:
    return f"$ref {reference[:100]!r} has no target; only references inside the schema are followed."


class CheckTimedOut(Exception):
    """The check did not end in time."""


class TooMuchMemory(CheckTimedOut):
    """The check exceeded its memory limit."""


class NoFreeProcess(Exception):
    """All processes for such checks were busy, or none could be started."""


@dataclass(slots=True)
class TimeBudget:
    """Seconds that all checks of one request share."""

    left: float = field(default_factory=lambda: settings.DISPATCHER.schema_check_seconds)


class SchemaProcesses:
    """Processes that check schemas, started when first needed; each exits with this process, which closes its
    input.

    One object per process, in `jobs.ports.Ports`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy = 0

    def mismatch(self, schema: ForeignSchema, payload: Any, budget: TimeBudget) -> Mismatch | None:
        """Check a payload in a process, within `budget`, which is reduced; return the first mismatch, or
        None.

        Raises CheckTimedOut, TooMuchMemory, NoFreeProcess."""
        began = time.monotonic()
        try:
            process = self._take(budget.left)
            try:
                found = _run_check(process, schema, payload, budget.left - (time.monotonic() - began))
            finally:
                self._put_back(process)
        finally:
            budget.left = max(0.0, budget.left - (time.monotonic() - began))
        return None if found is None else Mismatch(tuple(found[0]), found[1])

    def close(self) -> None:
        """End the idle processes."""
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)

    def _take(self, seconds: float) -> subprocess.Popen[bytes]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._busy < settings.DISPATCHER.schema_checks, seconds):
                raise NoFreeProcess
            self._busy += 1
            process = None
            while self._idle and process is None:
                process = self._idle.pop()
                if process.poll() is not None:
                    _end(process)
                    process = None
        try:
            return process or _start()
        except OSError:
            self._leave()
            raise NoFreeProcess from None

    def _put_back(self, process: subprocess.Popen[bytes]) -> None:
        with self._changed:
            if process.returncode is None:
                self._idle.append(process)
        self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify()


def _start() -> subprocess.Popen[bytes]:
    limits = settings.DISPATCHER
    most = (limits.schema_check_bytes, math.ceil(limits.schema_check_seconds) + 1)
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _CHILD, *map(str, most)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _run_check(process: subprocess.Popen[bytes], schema: ForeignSchema, payload: Any, seconds: float) -> Any:
    """Run one check; kill the process if it takes longer, or fails."""
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Timer(max(seconds, 0.0), process.kill)
    late.start()
    answer = b""
    with suppress(OSError):  # killed
        process.stdin.write(b"%s\n%s\n" % (json.dumps(schema.text).encode(), json.dumps(payload).encode()))
        process.stdin.flush()
        answer = process.stdout.readline()
    late.cancel()
    if not answer.endswith(b"\n"):
        _end(process)
        raise CheckTimedOut if process.returncode in _OUT_OF_TIME else TooMuchMemory
    return json.loads(answer)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
