"""The committed migrations are those of the models, whatever the hash seed."""

from __future__ import annotations

import pytest
from django.core.management import call_command

pytestmark = pytest.mark.django_db


def test_no_migration_is_missing():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
