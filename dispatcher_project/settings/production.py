"""Settings of a deployment: all from the environment, without a default secret."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from foundation.program import command_line

from .base import *  # noqa: F403
from .base import DATA_DIR, SECRET_KEY

if not SECRET_KEY:
    raise ImproperlyConfigured(
        f"no `up` runs on {DATA_DIR}: start it with `{command_line('up')}`, or name the folder of another "
        "with --data-dir (or DISPATCHER_DATA_DIR). An installation without `up` needs its settings, first of "
        "all DJANGO_SECRET_KEY, a long random text"
    )
