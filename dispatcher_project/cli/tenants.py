"""Which tenant a command means."""

from __future__ import annotations

from django.core.management.base import CommandError

from jobs.models import Tenant

OPERATORS = "operator"
"""The name of the tenant that `up` creates for the operator."""


def tenant_named(name: str | None) -> Tenant:
    """Without a name: the operators' own, or the only one. Raises CommandError with the names there are."""
    known = {tenant.name: tenant for tenant in Tenant.objects.all()}
    if name is None:
        name = OPERATORS if OPERATORS in known else next(iter(known), "") if len(known) == 1 else None
    if name is None or not known:
        raise CommandError(
            f"give --tenant: {', '.join(known)}"
            if known
            else "there is no tenant yet: `python3 manage.py create_key --tenant NAME` makes one"
        )
    if name not in known:
        raise CommandError(f"no tenant is named {name}; there are {', '.join(known)}")
    return known[name]
