"""Settings of pytest: SQLite in a temporary file, or the server in DISPATCHER_TEST_DATABASE_URL."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from .base import *  # noqa: F403
from .base import DISPATCHER, database
from .celery import broker_url

DISPATCHER = replace(DISPATCHER, metrics_token=DISPATCHER.metrics_token or "open")
SECRET_KEY = "tests-only-" + "x" * 40
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:1/0")
BROKER_URL = broker_url(os.environ.get("BROKER_URL", REDIS_URL))
_folder = tempfile.mkdtemp(prefix="dispatcher-tests-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
ARTIFACT_FOLDER = Path(_folder) / "artifacts"
WHITENOISE_AUTOREFRESH = True  # no scan of all files by the middleware of each test client
DATABASES = {
    "default": database(os.environ.get("DISPATCHER_TEST_DATABASE_URL") or f"sqlite:///{_folder}/db.sqlite3")
}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["TEST"] = {"NAME": f"{_folder}/test.sqlite3"}
