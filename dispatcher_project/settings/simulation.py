"""Settings of `manage.py simulate`: a database in memory, no broker, no log."""

from __future__ import annotations

import os

os.environ["DISPATCHER_LOG_LEVEL"] = "CRITICAL"

from .base import *  # noqa: F403
from .base import database
from .dispatcher import DispatcherSettings

SECRET_KEY = "the simulator keeps no secrets " + "x" * 20
DISPATCHER = DispatcherSettings()  # ignores the environment, so that a seed is reproducible
DATABASES = {"default": database("sqlite://:memory:")}
