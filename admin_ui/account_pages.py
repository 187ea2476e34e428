"""People who log in here, and their groups."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from rest_framework_api_key.models import APIKey
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from .read_only import OperatorAdmin

admin.site.unregister((User, Group))
admin.site.unregister(APIKey)  # the package's own key, without a tenant: ours is jobs.ApiKey


@admin.register(User)
class UserPages(UserAdmin, OperatorAdmin):  # type: ignore[misc,type-arg]
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_filter = ("is_staff", "is_superuser", "is_active", "groups")


@admin.register(Group)
class GroupPages(GroupAdmin, OperatorAdmin):  # type: ignore[misc]
    pass
