"""Filters whose choices cost nothing to find: from the registry and from our own tables of words, never by a
DISTINCT over millions of jobs."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter

from gpus.errors import ERRORS_BY_CODE
from gpus.models import ModelConfig, Pool, Server
from jobs import errors
from jobs.states import JOB_MOVES

_MOST_CHOICES = 500


class _ExactFilter(DropdownFilter):  # type: ignore[misc]
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(**{str(self.parameter_name): value}) if value else queryset


class ModelFilter(_ExactFilter):
    title = "model"
    parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return _names(ModelConfig.objects.values_list("name", flat=True))


class PoolFilter(_ExactFilter):
    title = "pool"
    parameter_name = "pool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return _names(Pool.objects.values_list("name", flat=True))


class ServerFilter(_ExactFilter):
    title = "server"
    parameter_name = "server"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return _names(Server.objects.values_list("name", flat=True))


class ErrorCodeFilter(_ExactFilter):
    title = "error"
    parameter_name = "error_code"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        own = (errors.DEADLINE_EXCEEDED, errors.POISON, errors.CANCELLED, errors.LOST_AT_MOST_ONCE)
        return [(code, code) for code in sorted({*own, *ERRORS_BY_CODE})]


class EventTypeFilter(_ExactFilter):
    title = "type"
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(event, event) for event in sorted({move.event for move in JOB_MOVES} | {"submitted"})]


class OpenQuarantineFilter(DropdownFilter):  # type: ignore[misc]
    title = "state"
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("1", "in quarantine"), ("0", "freed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(freed_at__isnull=value == "1") if value in ("0", "1") else queryset


def _names(rows: Any) -> list[tuple[str, str]]:
    return [(name, name) for name in rows[:_MOST_CHOICES]]
