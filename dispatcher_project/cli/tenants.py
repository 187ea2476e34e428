"""Which tenant a command means."""

from __future__ import annotations

from django.core.management.base import CommandError

from jobs.models import Tenant

OPERATORS = "operator"
"""The name of the tenant that `up` creates for the operator."""


def tenant_named(name: str | None) -> Tenant:
    """Without a name: the operators' own, or the only one. Raises CommandError with the names there are."""
    if name is not None and (found := Tenant.objects.filter(name=name).first()) is not None:
        return found
    names = list(Tenant.objects.values_list("name", flat=True))
    if not names:
        raise CommandError("there is no tenant yet: `python3 manage.py create_key --tenant NAME` makes one")
    if name is not None:
        raise CommandError(f"no tenant is named {name}; there are {', '.join(names)}")
    if OPERATORS not in names and len(names) > 1:
        raise CommandError(f"give --tenant: {', '.join(names)}")
    return Tenant.objects.get(name=OPERATORS if OPERATORS in names else names[0])
