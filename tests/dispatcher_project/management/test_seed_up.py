"""The rows that `up` needs before it serves."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model

from dispatcher_project.management.commands.seed_up import _keep_admin

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def test_the_admin_is_made_once_with_the_folders_password() -> None:
    assert _keep_admin("sesame")
    assert get_user_model().objects.get(username="admin").is_superuser
    assert _keep_admin("sesame"), "the next start"


def test_an_admin_of_before_keeps_the_password() -> None:
    get_user_model().objects.create_superuser("admin", "", "of before")
    assert not _keep_admin("sesame")
    assert get_user_model().objects.get(username="admin").check_password("of before")
