"""Which of the worker's environment variables its models' code gets to see. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NOT_FOR_MODELS = re.compile(
    r"(DISPATCHER|DJANGO|CELERY|FLOWER)_.*"
    r"|PG[A-Z]+"  # libpq's own
    r"|(.*_)?(DATABASE|REDIS|VALKEY|BROKER)_URL"
    r"|NOTIFY_SOCKET|CREDENTIALS_DIRECTORY|WATCHDOG_.*"  # systemd's, for the worker itself
)
"""A model's code has no business with these, nor has what it logs. What it is to have is given to its process
explicitly."""


def for_models(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not _NOT_FOR_MODELS.fullmatch(name)}
