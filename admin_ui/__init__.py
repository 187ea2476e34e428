"""The operators' pages. Here: their path, and Flower's, its own `url_prefix`. Read from the
environment, because Flower's own process and `up` have no settings of Django's."""

import os

ADMIN_PATH = os.environ.get("DISPATCHER_ADMIN_PATH") or "admin"
FLOWER_PREFIX = f"{ADMIN_PATH}/flower"
