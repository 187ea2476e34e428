"""Where Flower's pages are: its own `url_prefix`, and the path under which the web passes them on. Read from
the environment, because Flower's own process has no settings of Django's."""

import os

ADMIN_PATH = os.environ.get("DISPATCHER_ADMIN_PATH") or "admin"
FLOWER_PREFIX = f"{ADMIN_PATH}/flower"
