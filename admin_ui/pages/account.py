"""Pages of users, groups and failed sign-ins."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest
from rest_framework_api_key.models import APIKey
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from admin_ui.parts.base_pages import OperatorAdmin
from admin_ui.parts.typed_decorators import column
from jobs.models import SignInFailure
from jobs.operations.sign_in import account_names

UNKNOWN = "no such account"

admin.site.unregister((User, Group))
admin.site.unregister(APIKey)  # the package's own model, without a tenant; ours is jobs.ApiKey


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
    """Deleting a row lifts the lock of its address and account at once."""

    noun = ("failed sign-in", "failed sign-ins")
    about = "Sign-ins that failed, by address and account. Delete a row to lift its lock at once."
    list_display = ("address", "account_name", "failures", "last_failure")
    search_fields = ("address__exact",)
    search_help_text = "Exact match of an IP address."
    fields = ("address", "account_name", "failures", "last_failure")
    readonly_fields = ("account_name", "failures", "last_failure")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        page = super().get_changelist_instance(request)
        names = account_names({failure.account for failure in page.result_list})
        for failure in page.result_list:
            failure.account_name = names.get(failure.account, UNKNOWN)
        return page

    @column("account")
    def account_name(self, failure: SignInFailure) -> str:
        """The account's name if it exists. Other texts are not stored: users type passwords into that
        field."""
        known: str | None = getattr(failure, "account_name", None)
        return known or account_names({failure.account}).get(failure.account, UNKNOWN)

    @column("failed sign-ins", ordering="count")
    def failures(self, failure: SignInFailure) -> int:
        return failure.count

    @column("last failed", ordering="last_at")
    def last_failure(self, failure: SignInFailure) -> datetime:
        return failure.last_at

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
