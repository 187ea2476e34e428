"""Logging of every process: one line per record, a constant event with ids as fields, as JSON or as console
text.

Records of structlog and of the standard library (Django, Celery, kombu, uvicorn) go to one handler on stderr.
Django sets it up from `LOGGING`, once per process.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import structlog

from foundation.secrets import hide_keys

_SPACE = re.compile(r"[\s=]")
_TOKEN = re.compile(r"(token=)[^&\s'\"]+")
_MAX_OF_A_REQUEST = 1000
"""Longest text of a request in a log line: its URL may have 64 KB, and three lines contain it."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Escapes for control characters, so that a request's header can't control the terminal."""
_requests = structlog.get_logger("django_structlog.middlewares.request")


def hide_tokens(logger: Any, method: str, event: Any) -> Any:
    """Structlog processor: remove tokens from the request's URL, where Cog's webhooks have them, and shorten
    it. Django logs a refused request as an object."""
    request = event.get("request")
    if request is not None:
        text = request if isinstance(request, str) else repr(request)
        if "token=" in text:
            event["request"] = text = _TOKEN.sub(r"\1…", text)
        if len(text) > _MAX_OF_A_REQUEST:
            text = hide_keys(text)  # before the cut, which might leave a part of a key
            event["request"] = f"{text[:_MAX_OF_A_REQUEST]}… ({len(text)} characters)"
    return event


_EXTRAS = structlog.stdlib.ExtraAdder()
_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _EXTRAS,
    hide_tokens,
]
_QUIET = {
    "celery": "INFO",
    "celery.app.trace": "WARNING",  # one line per wake
    "celery.worker.strategy": "WARNING",
    "kombu": "WARNING",
    "amqp": "WARNING",
    "django.request": "ERROR",  # a refusal is no warning; `request_finished` has it with its code
    "django.server": "WARNING",
    "tornado.access": "WARNING",
    "urllib3": "WARNING",
}


def logging_config(*, style: str = "", level: str = "INFO") -> dict[str, Any]:
    """Configure structlog, and return the value of Django's LOGGING.

    style: ``json``, ``console``, or empty: console on a terminal, else JSON. level: of all loggers.
    """
    style = style or ("console" if sys.stderr.isatty() else "json")
    if style not in ("json", "console"):
        raise ValueError(f"the log style is json or console, not {style!r}")
    if not isinstance(logging.getLevelName(level.upper()), int):
        raise ValueError(f"unknown log level {level!r}")
    _configure_structlog()
    logging.captureWarnings(True)
    # no line contains them, and each record would look them up (Python's logging HOWTO, "Optimization")
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": Lines,
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderer(style)],
                "foreign_pre_chain": _SHARED,
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
        "loggers": {name: {"level": quiet} for name, quiet in _QUIET.items()},
    }


class Lines(structlog.stdlib.ProcessorFormatter):
    """Formats structlog's records without the copy that `ProcessorFormatter` makes of each for other
    formatters. Records of other libraries take its normal path."""

    def format(self, record: logging.LogRecord) -> str:
        logger, name = record.__dict__.get("_logger"), record.__dict__.get("_name")
        if logger is None or name is None:
            return hide_keys(super().format(record))
        event: Any = {**record.__dict__["msg"], "_record": record, "_from_structlog": True}
        for process in self.processors:
            event = process(logger, name, event)
        return hide_keys(str(event))


def _configure_structlog() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *(one for one in _SHARED if one is not _EXTRAS),
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def plain_line(logger: Any, method: str, event: dict[str, Any]) -> str:
    """Structlog renderer: the line of structlog's console renderer without colours, in a third of its time,
    with control characters escaped."""
    title, name = event.pop("event", ""), event.pop("logger", "")
    line = f"{event.pop('timestamp', '')} [{event.pop('level', ''):<9}] {title!s:<30} [{name}]"
    after = [event.pop(part) for part in ("stack", "exception") if part in event]
    for key in sorted(event):
        value = event[key]
        is_plain = isinstance(value, str) and value and not _SPACE.search(value)
        line += f" {key}={value if is_plain else repr(value)}"
    return _escaped("\n".join([line, *after]))


def printable(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Structlog processor: escape control characters, because texts may come from requests and GPU
    servers."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _escaped(value)
    return event


def _escaped(text: str) -> str:
    return text if text.isprintable() else text.translate(_CONTROLS)


def _renderer(style: str) -> list[Any]:
    # plain tracebacks: rich ones print local variables, which may be secrets
    if style == "console" and sys.stderr.isatty():
        return [
            structlog.processors.format_exc_info,
            printable,
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ]
    if style == "console":
        return [structlog.processors.format_exc_info, plain_line]
    encode = json.JSONEncoder(default=str).encode  # one encoder; `json.dumps` would make one per line
    return [structlog.processors.format_exc_info, lambda logger, name, event: encode(event)]


def log_request_started(scope: Mapping[str, Any], named: Mapping[bytes, bytes]) -> dict[str, str | None]:
    """Log the line of `django_structlog`'s middleware for a request that does not pass through Django.

    named: the request's headers. Returns the fields of all its lines: `request_id`, `ip`, `user_id`.
    """
    fields = {"request_id": str(uuid.uuid4()), "user_id": None, "ip": _ip(scope)}
    agent = named.get(b"user-agent")
    _requests.info(
        "request_started",
        request=_request(scope),
        user_agent=None if agent is None else agent.decode("latin1"),
        **fields,
    )
    return fields


def log_request_finished(
    scope: Mapping[str, Any], fields: Mapping[str, str | None], status: int, user_id: str
) -> None:
    """Log the end of a request that does not pass through Django. fields: of `log_request_started`."""
    write = _requests.error if status >= 500 else _requests.info
    write("request_finished", code=status, request=_request(scope), **{**fields, "user_id": user_id})


def _request(scope: Mapping[str, Any]) -> str:
    return f"{scope['method']} {scope['path']}"


def _ip(scope: Mapping[str, Any]) -> str | None:
    """The client's address; the web server has already replaced a trusted proxy's (FORWARDED_ALLOW_IPS)."""
    return (scope.get("client") or (None,))[0]
