"""Logging of every process: a constant event with ids as fields, one line each, JSON or for the eye.

Both structlog's and the standard library's records (Django, Celery, kombu, uvicorn) end in one handler on
stderr. Set up by Django from `LOGGING`, once per process.
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
_MOST_OF_A_REQUEST = 1000
"""Characters: its URL may have 64 KB, and three lines name it."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Of a terminal: a header of a request must not move its cursor or set its title."""
_requests = structlog.get_logger("django_structlog.middlewares.request")


def hide_tokens(logger: Any, method: str, event: Any) -> Any:
    """Cog's webhooks carry an attempt's token in their URL; Django logs a refused one as an object."""
    request = event.get("request")
    if request is not None:
        text = request if isinstance(request, str) else repr(request)
        if "token=" in text:
            event["request"] = text = _TOKEN.sub(r"\1…", text)
        if len(text) > _MOST_OF_A_REQUEST:
            text = hide_keys(text)  # of one that is cut in two, half would stay
            event["request"] = f"{text[:_MOST_OF_A_REQUEST]}… ({len(text)} characters)"
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
    "celery.app.trace": "WARNING",  # one line per wake would drown the jobs' own
    "celery.worker.strategy": "WARNING",
    "kombu": "WARNING",
    "amqp": "WARNING",
    "django.server": "WARNING",
    "tornado.access": "WARNING",
    "urllib3": "WARNING",
}


def logging_config(*, style: str = "", level: str = "INFO") -> dict[str, Any]:
    """For Django's LOGGING, and configures structlog. style: ``json``, ``console``, or empty: console on a
    terminal, else JSON. level: of our own and everybody's loggers."""
    style = style or ("console" if sys.stderr.isatty() else "json")
    if style not in ("json", "console"):
        raise ValueError(f"the log style is json or console, not {style!r}")
    if not isinstance(logging.getLevelName(level.upper()), int):
        raise ValueError(f"unknown log level {level!r}")
    _configure_structlog()
    logging.captureWarnings(True)
    # told by no line, and looked up for each: as Python's own manual has it (logging, "Optimization")
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
    """Writes structlog's records as they are, without the second record that it makes of each for the sake of
    other formatters. Records of others it leaves to that."""

    def format(self, record: logging.LogRecord) -> str:
        logger, name = record.__dict__.get("_logger"), record.__dict__.get("_name")
        if logger is None or name is None:
            return hide_keys(super().format(record))
        said: Any = {**record.__dict__["msg"], "_record": record, "_from_structlog": True}
        for process in self.processors:
            said = process(logger, name, said)
        return hide_keys(str(said))


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
    """What structlog's own console renderer writes without colours, in a third of its time, with control
    characters escaped."""
    told, name = event.pop("event", ""), event.pop("logger", "")
    line = f"{event.pop('timestamp', '')} [{event.pop('level', ''):<9}] {told!s:<30} [{name}]"
    after = [event.pop(part) for part in ("stack", "exception") if part in event]
    for key in sorted(event):
        value = event[key]
        is_plain = isinstance(value, str) and value and not _SPACE.search(value)
        line += f" {key}={value if is_plain else repr(value)}"
    return _escaped("\n".join([line, *after]))


def printable(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Texts come from requests and GPU servers, too."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _escaped(value)
    return event


def _escaped(text: str) -> str:
    return text if text.isprintable() else text.translate(_CONTROLS)


def _renderer(style: str) -> list[Any]:
    # plain tracebacks: the rich ones print local variables, and some of those are secrets
    if style == "console" and sys.stderr.isatty():
        return [
            structlog.processors.format_exc_info,
            printable,
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ]
    if style == "console":
        return [structlog.processors.format_exc_info, plain_line]
    encode = json.JSONEncoder(default=str).encode  # made once: `json.dumps` makes one for each line
    return [structlog.processors.format_exc_info, lambda logger, name, said: encode(said)]


def log_request_started(scope: Mapping[str, Any], named: Mapping[bytes, bytes]) -> dict[str, str | None]:
    """Log the line that `django_structlog`'s middleware writes, for a request that never comes to Django.
    Return what every line of the request says: `request_id`, `ip`, `user_id`. named: its headers."""
    asked_by = {"request_id": str(uuid.uuid4()), "user_id": None, "ip": _ip(scope)}
    agent = named.get(b"user-agent")
    _requests.info(
        "request_started",
        request=_request(scope),
        user_agent=None if agent is None else agent.decode("latin1"),
        **asked_by,
    )
    return asked_by


def log_request_finished(
    scope: Mapping[str, Any], asked_by: Mapping[str, str | None], status: int, user_id: str
) -> None:
    write = _requests.error if status >= 500 else _requests.info
    write("request_finished", code=status, request=_request(scope), **{**asked_by, "user_id": user_id})


def _request(scope: Mapping[str, Any]) -> str:
    return f"{scope['method']} {scope['path']}"


def _ip(scope: Mapping[str, Any]) -> str | None:
    """The web server has put the address in place that a trusted proxy names (`--forwarded-allow-ips`)."""
    return (scope.get("client") or (None,))[0]
