"""Whose workflow or schedule a name means, by one rule for all commands: with --tenant that tenant's; else
that of the only tenant that has one of this name; of several the default tenant's (`tenant_named`)."""

from __future__ import annotations

from typing import TypeVar

from django.core.management.base import CommandError
from django.db.models import Model

from dispatcher_project.cli.command import tenant_named
from dispatcher_project.cli.screen import plain
from jobs.models import Tenant

_NAMED = 20
"""Tenants that an error names."""
Row = TypeVar("Row", bound=Model)


def named_row(model: type[Row], name: str, tenant: str | None) -> Row:
    """Return the row of that name. model: with `tenant` and `name`. Raises CommandError, which names the
    tenants that were searched."""
    kind = str(model._meta.model_name)  # not the noun of its admin page
    rows = model._default_manager.select_related("tenant").filter(name=name)
    owner = None if tenant is None else tenant_named(tenant)
    found = list(rows[: _NAMED + 1])
    of_owner = [row for row in found if owner is None or _owner(row) == owner]
    if len(of_owner) > 1:
        default = tenant_named(None)
        of_owner = [row for row in of_owner if _owner(row) == default] or of_owner
    if len(of_owner) > 1:
        raise CommandError(f"name a tenant with --tenant: {_names(of_owner)} have a {kind} {plain(name, 80)}")
    if of_owner:
        return of_owner[0]
    searched = "any tenant" if owner is None else f"the tenant {owner.name}"
    there = f"--tenant names another: {_names(found)}" if found else f"`{kind} list` shows all"
    raise CommandError(f"there is no {kind} {plain(name, 80)} of {searched}; {there}")


def owner_of_new(given: str | None, *named: tuple[type[Model], str]) -> Tenant:
    """Return the tenant of something to store: the given one; else the only tenant that has the first of
    these rows, or the second, such as the schedule itself and the workflow that it starts; else the default
    one. Raises CommandError."""
    for model, name in named if given is None else ():
        owners = {
            _owner(row) for row in model._default_manager.select_related("tenant").filter(name=name)[:2]
        }
        if len(owners) == 1:
            return owners.pop()
        if owners:
            break
    return tenant_named(given)


def _owner(row: Model) -> Tenant:
    tenant: Tenant = row.tenant  # type: ignore[attr-defined]
    return tenant


def _names(rows: list[Row]) -> str:
    names = [_owner(row).name for row in rows[:_NAMED]]
    return ", ".join([*sorted(names), *(["…"] if len(rows) > _NAMED else [])])
