"""docs/reference/settings.md: every setting with its default, and its docstring as the meaning."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from itertools import pairwise
from typing import Any

from dispatcher_project.settings import dispatcher
from dispatcher_project.settings.dispatcher import DispatcherSettings

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
