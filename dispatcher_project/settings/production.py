"""Settings of a deployment: all from the environment, without a default secret."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from foundation.program import command_line

from .base import *  # noqa: F403
from .base import DATA_DIR, SECRET_KEY

if not SECRET_KEY:
    raise ImproperlyConfigured(
        f"set DJANGO_SECRET_KEY to a long random text; or start `{command_line('up')}`, which makes its own "
        f"and lends its settings to commands: none runs on {DATA_DIR} (--data-dir names another folder)"
    )
