"""dispatcher_client/submit_options.py: the client's options of a submit, from the body's fields."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foundation.http_api.openapi import json_schema
from jobs.submission.request import BatchItem

_POSITIONAL = ("model", "payload")
_TYPES = {
    "integer": "int",
    "boolean": "bool",
    "number": "float",
    "string": "str",
    "object": "Mapping[str, Any]",
    "array": "Sequence[str]",
}
_ARGUMENTS = {"integer": "number(int)", "number": "number(float)"}
"""Expressions of the client's module for functions that read a number, by its type in JSON."""
_OF_JSON = "; true means 2"
_WIDTH = 90


@dataclass(frozen=True, slots=True)
class Option:
    """name: of the body's field. schema: the field's, as it is published."""

    name: str
    schema: dict[str, Any]

    @property
    def flag(self) -> str:
        name = self.name.removesuffix("s") if "array" in self._types else self.name
        return "--" + name.replace("_", "-")

    @property
    def help(self) -> str:
        """Without what only JSON can say: a command line takes the number."""
        found = str(self.schema.get("description", "May be repeated." if "array" in self._types else ""))
        return found.replace(_OF_JSON, "")

    @property
    def arguments(self) -> dict[str, str]:
        """Of argparse's `add_argument`, as Python."""
        found: dict[str, str] = {}
        if self.flag != "--" + self.name.replace("_", "-"):
            found["dest"] = json.dumps(self.name)
        if self._choices:
            found["choices"] = json.dumps(self._choices)
        elif "array" in self._types:
            found["action"] = '"append"'
        elif "object" in self._types:
            found["type"] = "json_value"
        elif "string" not in self._types:
            found["type"] = _ARGUMENTS[self._types[0]]
        if self.schema.get("format") == "date-time":
            found["metavar"] = '"TIME"'
        return found

    @property
    def annotation(self) -> str:
        """The type of what Python callers give; None means not given."""
        if self._choices:
            return f"Literal[{', '.join(json.dumps(one) for one in self._choices)}] | None"
        found = [_TYPES[name] for name in self._types]
        if self.schema.get("format") == "date-time":
            found.insert(0, "datetime")
        return " | ".join([*found, "None"])

    @property
    def _types(self) -> list[str]:
        named = self.schema.get("type", "string")
        return [name for name in ([named] if isinstance(named, str) else named) if name != "null"]

    @property
    def _choices(self) -> list[str]:
        return [choice for choice in self.schema.get("enum", ()) if choice is not None]


def submit_options() -> list[Option]:
    """In the order of the body's fields."""
    properties = json_schema(BatchItem)["properties"]
    return [Option(name, schema) for name, schema in properties.items() if name not in _POSITIONAL]


def client_module() -> str:
    """The source of `dispatcher_client/submit_options.py`."""
    return "\n".join(
        [
            '"""The options of a submit: made from jobs/submission/request.py by `manage.py write_docs`."""',
            "",
            "from __future__ import annotations",
            "",
            "import argparse",
            "import json",
            "import sys",
            "from collections.abc import Callable, Mapping, Sequence",
            "from datetime import datetime",
            "from typing import Any, Literal, TypedDict",
            "",
            "",
            "class SubmitOptions(TypedDict, total=False):",
            '    """What a submit may say besides model and payload."""',
            "",
            *(f"    {option.name}: {option.annotation}" for option in submit_options()),
            "",
            "",
            "def add_submit_options(parser: argparse.ArgumentParser) -> None:",
            '    """Add one argument per option."""',
            *(line for option in submit_options() for line in _add_argument(option)),
            "",
            "",
            "def number(kind: type[int | float]) -> Callable[[str], int | float]:",
            '    """Return a function that reads an argument: a whole number (int), or any (float)."""',
            "",
            "    def read(text: str) -> int | float:",
            "        try:",
            "            return kind(text)",
            "        except ValueError:",
            '            name = "a whole number" if kind is int else "a number"',
            '            raise argparse.ArgumentTypeError(f"must be {name}, not {text!r}") from None',
            "",
            "    return read",
            "",
            "",
            "def json_value(text: str) -> Any:",
            '    """The value of an argument that holds JSON; - reads it from stdin."""',
            "    try:",
            '        return json.loads(sys.stdin.read() if text == "-" else text)',
            "    except ValueError as error:",
            '        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None',
            "",
        ]
    )


def _add_argument(option: Option) -> Iterator[str]:
    yield "    parser.add_argument("
    yield f'        "{option.flag}",'
    for name, value in option.arguments.items():
        yield f"        {name}={value},"
    pieces = textwrap.wrap(option.help, _WIDTH, drop_whitespace=False)
    yield f"        help={json.dumps(pieces[0], ensure_ascii=False)}" + ("," if len(pieces) == 1 else "")
    for piece in pieces[1:]:
        yield f"        {json.dumps(piece, ensure_ascii=False)}" + ("," if piece is pieces[-1] else "")
    yield "    )"
