"""The workflows of the simulated world."""

from __future__ import annotations

from typing import Any

NEVER = "never"
"""A signal that is never sent."""
WAITS = "waits"
"""A sub-workflow that waits for it."""


def _job(model: str, seconds: float = 0.5, **payload: Any) -> dict[str, Any]:
    return {"model": model, "payload": {"seconds": seconds, "fails": 0.0, **payload}, "max_retries": 3}


def _ref(expression: str, **more: Any) -> dict[str, Any]:
    return {"$ref": expression, **more}


CHILD: dict[str, Any] = {
    "nodes": {
        "pause": {"timer": {"seconds": _ref("inputs.seconds")}},
        "work": {**_job("tiny", got=_ref("inputs.got")), "needs": ["pause"]},
    },
    "output": {"got": _ref("work.attempt")},
}
DEFINITIONS: dict[str, dict[str, Any]] = {
    "chain": {
        "nodes": {
            "a": _job("zimg", number=_ref("inputs.number")),
            "b": {**_job("ltx2", a=_ref("a.attempt")), "near": "a"},
            "c": {
                **_job("tiny", fails=_ref("inputs.fails"), b=_ref("b.attempt"), a=_ref("a.server")),
                "near": "a",
            },
            "d": {**_job("tiny", c=_ref("c.attempt")), "when": "inputs.number > `3`"},
            "e": {**_job("tiny", d=_ref("d.attempt", default="skipped")), "needs": ["c"], "near": "c"},
        },
        "output": {"c": _ref("c.attempt")},
    },
    "wide": {
        "nodes": {
            "list": _job("tiny", number=_ref("inputs.number")),
            "many": {
                **_job(
                    "zimg",
                    fails=_ref("inputs.fails"),
                    item=_ref("item"),
                    from_=_ref("list.attempt"),
                    result_chars=_ref("inputs.chars", default=0),
                ),
                "map": {"over": _ref("inputs.items"), "max_parallel": 2, "fail_at": 0.6},
                "near": "list",
            },
            "none": {**_job("tiny"), "map": {"count": 0}, "needs": ["list"]},
            "join": {**_job("tiny", all=_ref("many[*].attempt")), "needs": ["none"]},
        },
        "output": {"joined": _ref("join.attempt"), "texts": _ref("many[*].text", default=[])},
        "on_failure": {"running": "cancel", "node": "mail"},
    },
    "asks": {
        "nodes": {
            "a": _job("tiny"),
            "best": {
                "human": {
                    "title": "Which?",
                    "choose_from": _ref("inputs.items"),
                    "expires_seconds": 12,
                    "on_expiry": "default",
                    "default": "expired",
                },
                "needs": ["a"],
            },
            "sign": {"signal": {"name": "go", "expires_seconds": 20, "on_expiry": "skip"}},
            "b": {**_job("zimg", best=_ref("best"), sign=_ref("sign", default=0)), "needs": ["sign"]},
        },
        "output": _ref("best"),
    },
    "nested": {
        "nodes": {
            "a": _job("ltx2", fails=_ref("inputs.fails")),
            "sub": {"workflow": "child", "inputs": {"got": _ref("a.attempt"), "seconds": 2}},
            "subs": {
                "workflow": "child",
                "inputs": {"got": _ref("index"), "seconds": _ref("index")},
                "map": {"count": 2, "max_parallel": 1},
                "needs": ["a"],
            },
            "last": {
                **_job("tiny", sub=_ref("sub.got", default=0), subs=_ref("subs[*].got", default=[])),
                "needs_rule": "all_done",
            },
        },
        "output": {"last": _ref("last.attempt")},
    },
}
DEFINITIONS["wide"]["nodes"]["mail"] = _job("tiny", error=_ref("error.node", default=""))


DEFINITIONS["beside"] = {
    "nodes": {
        "a": _job("tiny", fails=_ref("inputs.fails")),
        "bad": {**_job("tiny", got=_ref("a.nothing")), "needs": ["a"]},
        "long": _job("zimg", 6.0),
        "many": {**_job("ltx2", 3.0), "map": {"count": 4, "max_parallel": 2}},
        "asked": {"human": {"title": "Really?", "form": {}}},
        "never": {"signal": {"name": NEVER}},
        "subs": {"workflow": WAITS, "inputs": {}, "map": {"count": 2}},
        "seen": {**_job("tiny", got=_ref("inputs.nothing")), "needs_rule": "all_done"},
        "last": {**_job("tiny"), "needs": ["seen", "bad"], "needs_rule": "all_done"},
        "mail": _job("tiny", error=_ref("error.node", default="")),
        "strict": {**_job("tiny"), "needs": ["bad"]},
    },
    "on_failure": {"running": "cancel", "node": "mail"},
}
"""Fails for certain, beside nodes of all kinds; some of them end only if they are cancelled."""
SUB_WORKFLOWS: dict[str, dict[str, Any]] = {
    "child": CHILD,
    WAITS: {"nodes": {"never": {"signal": {"name": NEVER}}, "long": _job("tiny", 4.0)}},
}


def changed(definition: dict[str, Any], number: int) -> dict[str, Any]:
    """Return another version of a definition: its first node gets one value more."""
    first, *_ = definition["nodes"]
    node = definition["nodes"][first]
    payload = {**node.get("payload", {}), "version": number}
    return {**definition, "nodes": {**definition["nodes"], first: {**node, "payload": payload}}}
