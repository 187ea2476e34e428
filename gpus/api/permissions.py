"""Permissions of the registry's views.

Authentication is in `jobs/api`; it provides a user with `is_operator`, `name` (the audit actor) and
`has_perm`.
"""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission

from foundation.http_api.problems import Problem

_READS = {"HEAD": "GET", "OPTIONS": "GET"}


class IsOperator(BasePermission):
    """Allows an operator's key, or a staff session with the permission that the view `needs` for the
    method."""

    code = "operator_required"
    message = "This needs an operator's key or a staff session."

    def has_permission(self, request: Any, view: Any) -> bool:
        if not getattr(request.user, "is_operator", False):
            return False
        require_permission(request, view)
        return True


def require_permission(request: Any, view: Any) -> None:
    """Raise Problem 403 unless the user has the permission for the method.

    view.needs: Django permissions by HTTP method; a missing method is always refused.
    """
    needed = view.needs.get(_READS.get(request.method, request.method), "")
    if not request.user.has_perm(needed):
        raise Problem(403, "permission_required", f"This needs the permission {needed or 'to do so'}.")
