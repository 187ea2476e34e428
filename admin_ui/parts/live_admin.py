"""Pages whose rows are live: what is saved is told to the lease layer after the commit."""

from __future__ import annotations

from typing import Any

from django.db.models import Model, QuerySet
from django.http import HttpRequest

from admin_ui.parts.live import mirror_after_commit
from admin_ui.parts.read_only import OperatorAdmin
from gpus.models import ConfigVersion, QuarantinedSlot

_GOES_ALONG = {model._meta.verbose_name for model in (ConfigVersion, QuarantinedSlot)}


class LiveAdmin(OperatorAdmin):
    """fixed: what can't be changed once the row exists; a natural key would make a copy."""

    fixed: tuple[str, ...] = ("name",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), *(self.fixed if obj is not None else ()))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """With a server or model goes its history, which nobody deletes by itself."""
        told, counts, missing, protected = super().get_deleted_objects(objs, request)
        return told, counts, {name for name in missing if name not in _GOES_ALONG}, protected

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        mirror_after_commit(request)

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        super().delete_model(request, obj)
        mirror_after_commit(request)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        super().delete_queryset(request, queryset)
        mirror_after_commit(request)
