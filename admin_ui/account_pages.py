"""People who sign in here, their groups, and sign-ins that failed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest
from rest_framework_api_key.models import APIKey
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from jobs.models import SignInFailure

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


@admin.register(SignInFailure)
class SignInFailurePages(OperatorAdmin):
    """Deleting a row lets its address try again at once."""

    list_display = ("address", "count", "last_at")
    search_fields = ("address__exact",)
    search_help_text = "An address."
    fields = ("address", "count", "last_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
