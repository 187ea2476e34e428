"""Who may touch the registry. Authentication is above this floor; only its answer is needed here: a user with
`is_operator`, `name` (who an audit entry says it was) and `has_perm`."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission

from foundation.http_api.problems import Problem

_READS = {"HEAD": "GET", "OPTIONS": "GET"}


class IsOperator(BasePermission):
    """An operator's key, or a staff session that has the permission which the view `needs` for the method."""

    code = "operator_required"
    message = "This needs an operator's key or a staff session."

    def has_permission(self, request: Any, view: Any) -> bool:
        if not getattr(request.user, "is_operator", False):
            return False
        require_permission(request, view)
        return True


def require_permission(request: Any, view: Any) -> None:
    """view.needs: Django permissions by HTTP method; what is not named nobody has. Raises Problem 403."""
    needed = view.needs.get(_READS.get(request.method, request.method), "")
    if not request.user.has_perm(needed):
        raise Problem(403, "permission_required", f"This needs the permission {needed or 'to do so'}.")
