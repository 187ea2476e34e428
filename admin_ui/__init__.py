"""The operators' admin. Here: its URL path and Flower's `url_prefix`, read from the environment, because the
Flower process and `up` run without Django settings."""

import os

ADMIN_PATH = os.environ.get("DISPATCHER_ADMIN_PATH") or "admin"
FLOWER_PREFIX = f"{ADMIN_PATH}/flower"
