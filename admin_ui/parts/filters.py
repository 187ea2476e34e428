"""Filters of the lists. Their choices come from the registry and from constants, never from a DISTINCT over
millions of jobs."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter, RangeDateTimeFilter
from unfold.utils import parse_datetime_str

from foundation.ids import lowest_id
from gpus.errors import ERRORS_BY_CODE
from gpus.models import ModelConfig, Pool, Server
from gpus.runners.registry import runner_names
from jobs.domain import errors
from jobs.domain.event_types import EVENT_TYPES
from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState, JobState
from jobs.models import CLIENT_ERROR

_MAX_CHOICES = 500
_CLOCKS_DIFFER_SECONDS = 3600.0
"""Margin for ids, whose time is their process' clock: the id bounds the rows read, `created_at` decides."""


class _ExactFilter(DropdownFilter):  # type: ignore[misc]
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(**{str(self.parameter_name): value}) if value else queryset


class ModelFilter(_ExactFilter):
    title = "model"
    parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return _names(ModelConfig.objects.values_list("name", flat=True))


class ModelTypeFilter(_ExactFilter):
    title = "model type"
    parameter_name = "model_type__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in runner_names()]


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


class AttemptStateFilter(_ExactFilter):
    """Attempts by state; both live states, sent and waiting, are *running*, as everywhere on the pages."""

    title = "state"
    parameter_name = "state__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        ended = [state.value for state in AttemptState if state not in LIVE_ATTEMPT_STATES]
        return [(name, name) for name in (JobState.RUNNING.value, *ended)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == JobState.RUNNING:
            return queryset.filter(state__in=sorted(LIVE_ATTEMPT_STATES))
        return super().queryset(request, queryset)


class ErrorCodeFilter(_ExactFilter):
    title = "error"
    parameter_name = "error_code"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        own = (
            errors.DEADLINE_EXCEEDED,
            errors.START_DEADLINE_EXCEEDED,
            errors.STOPPED_BY_DEADLINE,
            errors.MAX_QUEUED_EXCEEDED,
            errors.POISON,
            errors.CANCELLED,
            errors.CANCELLED_BY_OPERATOR,
            errors.LOST_AT_MOST_ONCE,
        )
        return [(code, code) for code in sorted({*own, *ERRORS_BY_CODE})]


class JobErrorFilter(ErrorCodeFilter):
    """`ErrorCodeFilter` for jobs. It excludes COMPLETED jobs, nearly all rows, which have no error."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        rows = super().queryset(request, queryset)
        failing = [state.value for state in JobState if state is not JobState.COMPLETED]
        return rows.filter(state__in=failing) if self.value() else rows


class CreatedFilter(RangeDateTimeFilter):  # type: ignore[misc]
    """Filters by creation time, and by id, which begins with the time and has the index.

    prefix: the part of the id before the time.
    """

    prefix = ""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        rows: QuerySet[Any] | None = super().queryset(request, queryset)
        given = self.used_parameters
        for end, lookup, margin in (
            ("from", "gte", -_CLOCKS_DIFFER_SECONDS),
            ("to", "lt", _CLOCKS_DIFFER_SECONDS),
        ):
            day, time = (given.get(f"{self.parameter_name}_{end}_{part}") for part in (0, 1))
            moment = parse_datetime_str(f"{day} {time}") if day and time else None
            if rows is not None and moment is not None:
                bound = self.prefix + lowest_id(max(moment.timestamp() + margin, 0.0))
                rows = rows.filter(**{f"id__{lookup}": bound})
        return rows


class MessageCreatedFilter(CreatedFilter):
    prefix = "msg_"


class FingerprintFilter(_ExactFilter):
    """Set by links from the groups of dead letters; offers only the fingerprint in the query string."""

    title = "kind of failure"
    parameter_name = "error_fingerprint"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        given = request.GET.get("error_fingerprint", "")
        return [(given, given)] if given else []


class ClientErrorsFilter(DropdownFilter):  # type: ignore[misc]
    """Set by the links above the dead letters. Without it client errors are left out, unless an error code or
    a fingerprint is chosen, as in `jobs.reports.jobs.JobFilter`."""

    title = "cause"
    parameter_name = "client_errors"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("1", "client errors")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "1":
            return queryset.filter(CLIENT_ERROR)
        is_named = request.GET.get("error_code") or request.GET.get("error_fingerprint")
        return queryset if is_named else queryset.exclude(CLIENT_ERROR)


class EventTypeFilter(_ExactFilter):
    title = "type"
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(event, event) for event in sorted(EVENT_TYPES)]


class OpenQuarantineFilter(DropdownFilter):  # type: ignore[misc]
    title = "state"
    parameter_name = "open"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("1", "in quarantine"), ("0", "freed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(freed_at__isnull=value == "1") if value in ("0", "1") else queryset


def _names(rows: Any) -> list[tuple[str, str]]:
    return [(name, name) for name in rows[:_MAX_CHOICES]]
