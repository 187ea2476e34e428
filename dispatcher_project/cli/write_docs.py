"""The pages of docs/ that are made from code (`manage.py write_docs`): lifecycle.md from the state tables of
jobs/domain/states.py, model_options.md from the fields of `ModelConfig` and the runners, sweeps.md from the
registry of sweeps, settings.md from the settings; and the client's options of a submit."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from inspect import getmodule
from itertools import pairwise
from pathlib import Path
from typing import Any

from dispatcher_project.settings import dispatcher
from dispatcher_project.settings.dispatcher import DispatcherSettings
from foundation.http_api.openapi import json_schema
from gpus.api.bodies import schema_of
from gpus.registry.model_fields import all_options, defaults, help_of
from gpus.runners.registry import BUILT_IN
from jobs.domain.states import (
    ATTEMPT_MOVES,
    FINAL_JOB_STATES,
    JOB_MOVES,
    LIVE_ATTEMPT_STATES,
    AttemptState,
    JobState,
)
from jobs.submission.request import BatchItem
from jobs.sweeps.registry import Sweeps

DOCS = Path(__file__).resolve().parents[2] / "docs"


def pages() -> Mapping[Path, Callable[[], str]]:
    """What makes each of them."""
    return {
        DOCS / "reference" / "lifecycle.md": lifecycle_page,
        DOCS / "reference" / "model_options.md": model_options_page,
        DOCS / "reference" / "sweeps.md": sweeps_page,
        DOCS / "reference" / "settings.md": settings_page,
        DOCS.parent / "dispatcher_client/submit_options.py": client_module,
    }


def sweeps_page() -> str:
    """Every sweep: its period without settings, and the first paragraph of its module's docstring."""
    lines = [
        "# Sweeps",
        "",
        "<!-- Made from jobs/sweeps/ by `python3 manage.py write_docs`; don't edit. -->",
        "",
        "Each looks for one symptom and repairs it; one process runs those that are due, every second.",
        "What breaks without them is in [failures](failures.md).",
        "",
        "| Sweep | Every | In a thread of its own | What it looks for |",
        "| --- | --- | --- | --- |",
    ]
    for name, entry in Sweeps().entries(DispatcherSettings()).items():
        symptom = (getmodule(entry.sweep).__doc__ or "").partition("\n\n")[0]  # type: ignore[union-attr]
        said = " ".join(symptom.split())
        lines.append(f"| `{name}` | {entry.period_seconds:g} s | {'yes' if entry.slow else 'no'} | {said} |")
    return "\n".join([*lines, ""])


def model_options_page() -> str:
    """Every option of a model, and the runners that read it; of the built-in runners only."""
    preset = defaults()
    lines = [
        "# Model options",
        "",
        "<!-- Made from gpus/models/model_config.py and the runners by `python3 manage.py write_docs`; don't"
        " edit. -->",
        "",
        "`PUT` and `PATCH /api/v1/admin/model-configs/{model}`, `POST /api/v1/admin/register` and the",
        "model's admin page take them. Unset is `null` in JSON, and an empty field on the page.",
        "",
        "| Option | Value | Default | |",
        "| --- | --- | --- | --- |",
    ]
    for name, field in all_options().items():
        lines.append(f"| `{name}` | {_values(schema_of(field))} | {_shown(preset[name])} | {help_of(name)} |")
    lines += [
        "",
        "## Runners",
        "",
        "A model's `model_type` names the runner that speaks its servers' [protocol](gpu_protocol.md).",
        "Packages may bring [more](gpu_protocol.md#a-protocol-of-your-own).",
        "",
        "| `model_type` | Servers | Polled | Results may be pushed | Options that it reads |",
        "| --- | --- | --- | --- | --- |",
    ]
    for runner in BUILT_IN:
        read = ", ".join(f"`{name}`" for name in runner.options) or "–"
        polled, pushed = ("yes" if flag else "no" for flag in (runner.is_polled, runner.is_pushed))
        lines.append(f"| `{runner.name}` | {runner.summary} | {polled} | {pushed} | {read} |")
    return "\n".join([*lines, ""])


def _values(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    said = " or ".join(kind for kind in kinds if kind != "null")
    limits = (
        ("exclusiveMinimum", "more than"),
        ("minimum", "from"),
        ("maximum", "up to"),
    )
    if "maxLength" in schema:
        return f"{said} of up to {schema['maxLength']} characters"
    return ", ".join([said, *(f"{words} {schema[key]:,}" for key, words in limits if key in schema)])


def _shown(value: Any) -> str:
    return "unset" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def lifecycle_page() -> str:
    """The whole page, Markdown with Mermaid diagrams."""
    return "\n".join(
        [
            "# The life of a job",
            "",
            "<!-- Made from jobs/domain/states.py by `python3 manage.py write_docs`; don't edit. -->",
            "",
            "The state says where a job is; `error_code` says why it ended there. Every arrow is a",
            "compare-and-set in the database together with the event named beside it.",
            "",
            *_job_diagram(),
            "",
            "| From | To | Event | Because |",
            "| --- | --- | --- | --- |",
            *(f"| {move.source} | {move.target} | `{move.event}` | {move.why} |" for move in JOB_MOVES),
            "",
            *_ways_of_jobs(),
            "",
            "## The life of an attempt",
            "",
            f"One try of a job on one slot. A live one ({_list(LIVE_ATTEMPT_STATES, AttemptState)}) holds",
            "the slot: partial UNIQUE indexes allow one per slot and one per job.",
            "",
            *_attempt_diagram(),
            "",
        ]
    )


def _job_diagram() -> list[str]:
    arrows = [f"    {move.source} --> {move.target}: {move.event}" for move in JOB_MOVES]
    ends = [f"    {state} --> [*]" for state in JobState if state in FINAL_JOB_STATES]
    begins = ["    [*] --> queued: submitted", "    [*] --> scheduled: submitted for later"]
    return ["```mermaid", "stateDiagram-v2", *begins, *arrows, *ends, "```"]


def _ways_of_jobs() -> list[str]:
    """For each state, from where one enters it and to where one leaves it."""
    lines = ["| State | Entered from | Left to |", "| --- | --- | --- |"]
    for state in JobState:
        entered = {move.source for move in JOB_MOVES if move.target is state}
        left = {move.target for move in JOB_MOVES if move.source is state}
        ways = ["submit"] if state in (JobState.QUEUED, JobState.SCHEDULED) else []
        ways += [_list(entered, JobState)] if entered else []
        final = " (final)" if state in FINAL_JOB_STATES else ""
        lines.append(f"| {state}{final} | {', '.join(ways)} | {_list(left, JobState) or '–'} |")
    return lines


def _attempt_diagram() -> list[str]:
    arrows = [
        f"    {source} --> {target}"
        for source in AttemptState
        for target in AttemptState
        if target in ATTEMPT_MOVES.get(source, ())
    ]
    ends = [f"    {state} --> [*]" for state in AttemptState if state not in LIVE_ATTEMPT_STATES]
    return ["```mermaid", "stateDiagram-v2", "    [*] --> sent", *arrows, *ends, "```"]


def _list(states: frozenset[AttemptState] | set[JobState], order: type[AttemptState] | type[JobState]) -> str:
    return ", ".join(state.value for state in order if state in states)


SOURCE = "dispatcher_project/settings/dispatcher.py"

_ENVIRONMENT = """\
| `DJANGO_SECRET_KEY` | | Signs sessions, encrypts secrets. Required in production; `up` makes one. |
| `DJANGO_SETTINGS_MODULE` | `dispatcher_project.settings.production` | `up` takes its own. |
| `DJANGO_ALLOWED_HOSTS` | | Names under which clients reach the web. |
| `DJANGO_CSRF_TRUSTED_ORIGINS` | | Origins of the admin's pages behind a proxy, as `https://HOST`. |
| `DJANGO_DEBUG` | 0 | Never 1 in production. |
| `DATABASE_URL` | SQLite in the data folder | `postgresql://USER:PASSWORD@HOST/NAME` or `sqlite:////PATH`. \
Its query gives driver options, such as `?connect_timeout=3`. |
| `REDIS_URL` | `redis://127.0.0.1:6379/0` | The Redis or Valkey that holds the lease index. |
| `BROKER_URL` | `REDIS_URL` | Celery's broker, if it is another one, such as `amqp://…`. |
| `BROKER_SENTINEL_MASTER` | `mymaster` | The master's name, where `BROKER_URL` names Sentinels. |
| `FORWARDED_ALLOW_IPS` | 127.0.0.1 | Proxies whose `X-Forwarded-…` headers the web believes. Never `*`. |
| `FLOWER_BASIC_AUTH` | | `USER:PASSWORD` of Flower's own port; without it Flower does not start. |
| `DISPATCHER_DATA_DIR` | `var` | The data folder of `up` and of commands beside it. |
| `DISPATCHER_LOG_LEVEL` | INFO | Of all loggers. |
| `DISPATCHER_LOG_STYLE` | | `json` or `console`; empty: `console` on a terminal, else `json`. |
| `DISPATCHER_PAGES` | 1 | 0: a process that serves no pages starts faster. |
| `DISPATCHER_NO_BOOTSTRAP` | | 1: `manage.py` uses the Python that runs it, and makes no `.venv`. |"""
"""Variables that `DispatcherSettings` does not read."""

_GROUPS = {
    "Callbacks": ("callback",),
    "The web": ("web_", "upload_", "answer_", "streams_", "refused_body"),
    "Sign-in and the admin": ("sign_in", "passwords", "session", "hsts", "admin_"),
    "Models on GPU boxes": ("model_",),
    "Payload schemas": ("schema_",),
    "Circuits and failures": ("circuit", "retry", "free_", "poison", "same_failures"),
    "Addresses and secrets": ("public_url", "flower_url", "metrics_token", "secret_key"),
}
_REST = "Leases, jobs and sweeps"
_HEAD = ("| Variable | Default | Meaning |", "| --- | --- | --- |")


def settings_page() -> str:
    """The whole page, Markdown."""
    meanings, groups = _meanings(), dict[str, list[Any]]()
    for field in fields(DispatcherSettings):
        groups.setdefault(_group_of(field.name), []).append(field)
    lines = [
        "# Settings",
        "",
        f"<!-- Made from {SOURCE} by `python3 manage.py write_docs`; don't edit. -->",
        "",
        "All settings are environment variables. A bad value ends the start with one line that names it.",
        "Units are in the names; lists have commas between their parts.",
        "",
        *_HEAD,
        *_ENVIRONMENT.split("\n"),
    ]
    for group in (_REST, *_GROUPS):
        lines += ["", f"## {group}", "", *_HEAD]
        for one in groups[group]:
            name = f"DISPATCHER_{one.name.upper()}"
            lines.append(f"| `{name}` | {_default(one.default)} | {meanings[one.name]} |")
    return "\n".join([*lines, ""])


def _meanings() -> dict[str, str]:
    """The docstring behind each field, on one line."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(dispatcher)).body
        if isinstance(node, ast.ClassDef) and node.name == DispatcherSettings.__name__
    )
    found: dict[str, str] = {}
    for node, following in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = _text(following).replace("``", "`")
            found[node.target.id] = " ".join(text.split())
    return found


def _text(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return str(node.value.value) if is_text else ""  # type: ignore[attr-defined]


def _group_of(name: str) -> str:
    return next((group for group, starts in _GROUPS.items() if name.startswith(starts)), _REST)


def _default(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(default)
    if isinstance(default, float):
        return f"{default:.10g}"
    if isinstance(default, int):
        mebibytes, rest = divmod(default, 1 << 20)
        return f"{default} ({mebibytes} MiB)" if mebibytes and not rest else str(default)
    return f"`{default}`" if default else ""


_POSITIONAL = ("model", "payload")
_TYPES = {
    "integer": "int",
    "boolean": "bool",
    "number": "float",
    "string": "str",
    "object": "Mapping[str, Any]",
    "array": "Sequence[str]",
}
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
        return str(self.schema.get("description", "May be repeated." if "array" in self._types else ""))

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
            found["type"] = _TYPES[self._types[0]]
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
            "from collections.abc import Mapping, Sequence",
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
