"""Settings of `manage.py simulate`: a database in memory, no broker, no log."""

from __future__ import annotations

import os

os.environ["DISPATCHER_LOG_LEVEL"] = "CRITICAL"

from .base import *  # noqa: F403
from .base import database
from .dispatcher import DispatcherSettings

SECRET_KEY = "the simulator keeps no secrets " + "x" * 20
# The environment is ignored, so that a seed is reproducible. The grace is short, so that an outage makes
# due times late.
DISPATCHER = DispatcherSettings(schedule_grace_seconds=8.0)
DATABASES = {"default": database("sqlite://:memory:")}
