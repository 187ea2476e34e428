"""docs/reference/model_options.md: the fields of `ModelConfig`, and the built-in runners that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpus.api.bodies import schema_of
from gpus.registry.model_fields import all_options, defaults, help_of
from gpus.runners.registry import BUILT_IN


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
