"""Who may touch the registry. Authentication is above this floor; only its answer is needed here."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission


class IsOperator(BasePermission):
    """An operator's key or a staff session."""

    code = "operator_required"
    message = "This needs an operator's key or a staff session."

    def has_permission(self, request: Any, view: Any) -> bool:
        return bool(getattr(request.user, "is_operator", False))
