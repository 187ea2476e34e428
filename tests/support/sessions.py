"""A signed-in operator."""

from __future__ import annotations

from django.contrib.auth.models import Group, Permission, User
from rest_framework.test import APIClient

from admin_ui.parts.groups import write_groups


def session(*permissions: str, group: str = "") -> APIClient:
    """A session of a staff user, without the CSRF check."""
    user = User.objects.create_user("ada", is_staff=True)
    for permission in permissions:
        app, _, codename = permission.partition(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    if group:
        write_groups()
        user.groups.add(Group.objects.get(name=group))
    client = APIClient(raise_request_exception=False)
    client.force_login(user)
    return client
