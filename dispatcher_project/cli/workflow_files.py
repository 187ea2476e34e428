"""Reads definitions of workflows from files: JSON, YAML, or a `Workflow` in Python as ``module:name``."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import CommandError

from dispatcher_client import Workflow, WorkflowError
from dispatcher_project.cli.screen import plain, problem_text
from foundation.http_api.json_body import read_json
from foundation.http_api.problems import Problem

_IN_PYTHON = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_MAX_FILE_BYTES = 4 * 1024 * 1024


def read_definition_file(source: str) -> Any:
    """Return the JSON of a definition. source: path of a JSON or YAML file, ``-`` for JSON on stdin, or
    ``module:name``. Raises CommandError with the place of a mistake."""
    if source == "-":
        return _json(sys.stdin.buffer.read(_MAX_FILE_BYTES + 1), "stdin")
    path = Path(source)
    if not path.exists() and _IN_PYTHON.match(source):
        return _from_python(source)
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{source} cannot be read: {error.strerror}") from None
    if len(raw) > _MAX_FILE_BYTES:
        raise CommandError(f"{source} has more than {_MAX_FILE_BYTES} bytes")
    if path.suffix == ".py":
        raise CommandError(
            f"{source} is Python: name the Workflow in it as module:name, such as {plain(path.stem)}:wf"
        )
    return _yaml(raw, source) if path.suffix in (".yaml", ".yml") else _json(raw, source)


def is_file(source: str) -> bool:
    """Return True for the source of a definition, False for the name of a stored workflow: a file of that
    very name has to be written with its folder, as ``./film``."""
    if source == "-" or ":" in source or "/" in source:
        return True
    return Path(source).suffix in (".json", ".yaml", ".yml") and Path(source).is_file()


def text_of_problem(source: str, problem: Problem) -> str:
    """Return the errors of a definition in one line, each with its place."""
    return f"{plain(source)}: {problem_text(problem)}"


def _json(raw: bytes, source: str) -> Any:
    try:
        return read_json(raw, what="it")
    except Problem as problem:
        raise CommandError(text_of_problem(source, problem)) from None


class _Loader(yaml.SafeLoader):
    """YAML whose values are those of JSON: no dates, no aliases (a few lines of them make gigabytes), and no
    key twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key is there twice", node.start_mark)
        for name in found:
            if not isinstance(name, str):
                why = f"the key {name!r} is not a text: write it in quotes"
                raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
        return found


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _yaml(raw: bytes, source: str) -> Any:
    try:
        return yaml.load(raw, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise CommandError(plain(f"{source}{line}: {error.problem}")) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CommandError(plain(f"{source} is not valid YAML: {error}", 300)) from None


def _from_python(source: str) -> Any:
    module_name, _, name = source.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), name)
        return found.definition() if isinstance(found, Workflow) else found
    except WorkflowError as error:
        raise CommandError(plain(error)) from None
    except ModuleNotFoundError as error:
        raise CommandError(f"{source}: there is neither such a file nor a module: {plain(error)}") from None
    except AttributeError as error:
        raise CommandError(f"{source}: {plain(error)}") from None
    except Exception as error:  # the module is the user's
        raise CommandError(f"{source}: {type(error).__name__}: {plain(error, 300)}") from None
    finally:
        sys.path.pop(0)
