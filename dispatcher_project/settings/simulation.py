"""What `manage.py simulate` runs with: a database in memory, no broker, no log."""

from __future__ import annotations

import os

os.environ["DISPATCHER_LOG_LEVEL"] = "CRITICAL"

from .base import *  # noqa: F403
from .base import database
from .dispatcher import DispatcherSettings

SECRET_KEY = "the simulator keeps no secrets " + "x" * 20
DISPATCHER = DispatcherSettings()  # of the environment nothing counts: a seed is the same everywhere
DATABASES = {"default": database("sqlite://:memory:")}
