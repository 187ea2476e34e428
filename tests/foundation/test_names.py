"""Names: the whole text matches."""

from __future__ import annotations

import argparse

import pytest
from django.core.exceptions import ValidationError

from dispatcher_project.cli.arguments import name
from foundation.names import validate_name
from jobs.models import Tenant
from jobs.operations.tenants import create_tenant


@pytest.mark.database
@pytest.mark.django_db
@pytest.mark.parametrize("text", ["acme\n", "acme\r\n", "\nacme", "ac\nme", "", "-acme", "a" * 65])
def test_an_invalid_name_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        create_tenant(text)
    assert not Tenant.objects.exists()
    with pytest.raises(argparse.ArgumentTypeError):
        name(text)


def test_a_valid_name_is_accepted() -> None:
    validate_name("a")
    validate_name("Acme_1.2-" + "x" * 55)
    assert name("acme") == "acme"
