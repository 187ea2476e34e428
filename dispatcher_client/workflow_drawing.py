"""Draws a workflow as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_SHAPES = {
    "model": ("[", "]"),
    "human": ("{{", "}}"),
    "signal": (">", "]"),
    "timer": ("([", "])"),
    "workflow": ("[[", "]]"),
}
_MAX_LABEL = 60


def mermaid(definition: Mapping[str, Any], needs: Mapping[str, Collection[str]]) -> str:
    """Return the text of a flowchart. needs: the nodes that each node needs."""
    handler = (definition.get("on_failure") or {}).get("node")
    lines = ["flowchart TD"]
    for key, node in definition["nodes"].items():
        kind = next(kind for kind in _SHAPES if node.get(kind) is not None)
        begin, end = _SHAPES[kind]
        lines.append(f'    {_id(key)}{begin}"{_escaped(_label(key, kind, node))}"{end}')
    for key, node in definition["nodes"].items():
        arrow = "-.->" if node.get("when") else "-->"
        text = f'|"{_escaped(node["when"])}"|' if node.get("when") else ""
        lines += [f"    {_id(need)} {arrow}{text} {_id(key)}" for need in sorted(needs.get(key, ()))]
    if handler is not None:
        lines += [f"    failed((failed)) -.-> {_id(handler)}"]
    return "\n".join(lines) + "\n"


def _label(key: str, kind: str, node: Mapping[str, Any]) -> str:
    about = {
        "model": lambda: node["model"],
        "workflow": lambda: node["workflow"],
        "human": lambda: node["human"].get("title", "") if isinstance(node["human"], Mapping) else "",
        "signal": lambda: f"signal {node['signal']['name']}",
        "timer": lambda: "timer",
    }[kind]()
    times = ""
    if found := node.get("map"):
        count = found.get("count")
        times = f" × {count}" if isinstance(count, int) else " × n"
    return f"{key}{times}" if about == key else f"{key}: {about}{times}"


def _id(key: str) -> str:
    return f"n_{key}"  # a word such as `end` alone ends a graph


def _escaped(text: str) -> str:
    text = " ".join(text.split())
    text = text if len(text) <= _MAX_LABEL else text[: _MAX_LABEL - 1] + "…"
    for mark, code in (("#", "#35;"), ('"', "#quot;"), ("`", "#96;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(mark, code)
    return text
