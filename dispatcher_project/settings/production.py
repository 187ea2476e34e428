"""What a deployment runs with: everything from the environment, no secret by default."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from .base import *  # noqa: F403
from .base import SECRET_KEY

if not SECRET_KEY:
    raise ImproperlyConfigured(
        "set DJANGO_SECRET_KEY to a long random text (`python3 manage.py up` makes its own)"
    )
