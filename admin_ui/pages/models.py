"""Pages of models, pools, placements, and slots in quarantine."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter

from admin_ui.actions.machine_actions import circuit_text, close_circuits
from admin_ui.actions.operations import actor, confirm_first, for_each
from admin_ui.parts.base_pages import ReadOnlyAdmin, lock_row
from admin_ui.parts.filters import ModelTypeFilter, OpenQuarantineFilter
from admin_ui.parts.fleet_forms import ModelConfigForm, PlacementForm, PoolForm
from admin_ui.parts.formatting import job_link, list_link, model_link, server_link
from admin_ui.parts.live import LiveAdmin
from admin_ui.parts.typed_decorators import column, operation
from gpus.models import ModelConfig, Placement, Pool, QuarantinedSlot
from gpus.protocol import CircuitKind, slot_name
from gpus.registry.audit import read_pool_models, read_stored_fields, record_version, record_versions
from gpus.registry.model_fields import MODEL_FIELDS, RegistryRefused
from gpus.registry.quarantine import free_slot
from jobs import ports

_FIRST = (
    ("name", "pool"),
    ("model_type", "max_retries"),
    ("at_most_once", "max_queued", "max_queued_seconds"),
)
_PROTOCOL = (
    ("poll_endpoint_template", "id_field"),
    ("poll_interval", "max_poll_time"),
    ("max_run_seconds", "min_run_seconds"),
    ("cancel_endpoint_template", "max_response_bytes", "inline_result_bytes"),
    ("health_path", "keep_alive_seconds"),
    ("remote_model",),
)
_INPUT, _RESULT = ("payload_schema",), ("result_schema", "output_files")


def _other_options(*rows: tuple[str, ...]) -> tuple[str, ...]:
    """Options in none of the rows, so that a new one appears on the page without an entry here."""
    return tuple(name for name in MODEL_FIELDS if not any(name in row for row in rows))


@admin.register(ModelConfig)
class ModelConfigPages(LiveAdmin):
    noun = ("model", "models")
    form = ModelConfigForm
    fixed = ("name", "pool")
    audit_kind = "model"
    change_form_outer_after_template = "admin_ui/model_history.html"
    list_display = ("name", "pool", "model_type", "servers", "max_retries", "at_most_once", "updated_at")
    list_filter = (ModelTypeFilter, ("pool", RelatedDropdownFilter))
    list_select_related = ("pool",)
    search_fields = ("name",)
    actions = ("close_circuit",)
    readonly_fields = ("circuit",)
    fieldsets = (
        (None, {"fields": (*_FIRST, "circuit")}),
        ("Protocol", {"fields": (*_PROTOCOL, *_other_options(*_FIRST, *_PROTOCOL, _INPUT, _RESULT))}),
        ("Input", {"fields": _INPUT}),
        ("Result", {"fields": _RESULT}),
    )

    def lock(self, row: ModelConfig) -> None:
        """Lock the pool first, as registrations do: its fields are in the model's version."""
        lock_row(row.pool)
        super().lock(row)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            lock_row(obj.pool)
            obj.pool.refresh_from_db()
        before = read_stored_fields(obj.name) if change else None
        super().save_model(request, obj, form, change)
        record_version(obj, obj.pool, before=before, by=actor(request))

    @operation("Close the circuit (problem fixed)", permissions=["change"])
    def close_circuit(self, request: HttpRequest, queryset: QuerySet[ModelConfig]) -> None:
        close_circuits(request, CircuitKind.MODEL, queryset.order_by("name").values_list("name", flat=True))

    @column("circuit")
    def circuit(self, config: ModelConfig) -> str:
        return circuit_text(CircuitKind.MODEL, config.name, config.pool_id) if config.pk else "–"

    @column("servers")
    def servers(self, config: Any) -> int:
        return int(config.server_count)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ModelConfig]:
        rows: QuerySet[ModelConfig] = super().get_queryset(request)
        return rows.annotate(server_count=Count("placements"))


@admin.register(Pool)
class PoolPages(LiveAdmin):
    about = "Pools of servers and models. The models of a pool share its servers' slots and one queue."
    form = PoolForm
    fixed = ("name", "fleet")
    audit_values = ("algorithm", "affinity_patience_seconds")
    list_display = ("name", "fleet", "algorithm", "affinity_patience_seconds", "model_count", "server_count")
    list_filter = (("algorithm", ChoicesDropdownFilter),)
    search_fields = ("name",)
    fields = (("name", "fleet"), ("algorithm", "affinity_patience_seconds"))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        models = read_pool_models(Pool.objects.get(pk=obj.pk)) if change else []
        super().save_model(request, obj, form, change)
        record_versions(models, obj, by=actor(request))

    @column("models")
    def model_count(self, pool: Any) -> SafeString:
        return list_link("gpus_modelconfig", {"pool__name__exact": pool.name}, pool.model_count)

    @column("servers")
    def server_count(self, pool: Any) -> SafeString:
        return list_link("gpus_server", {"pool__name__exact": pool.name}, pool.server_count)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Pool]:
        rows: QuerySet[Pool] = super().get_queryset(request)
        return rows.annotate(
            model_count=Count("models", distinct=True), server_count=Count("servers", distinct=True)
        )


@admin.register(Placement)
class PlacementPages(LiveAdmin):
    about = "The models that each server can run, and the URLs for their payloads."
    form = PlacementForm
    fixed = ("server", "model")
    audit_values = ("endpoint",)
    list_display = ("server_page", "model_page", "endpoint")
    list_display_links = ("endpoint",)

    @column("server", ordering="server")
    def server_page(self, row: Placement) -> SafeString | str:
        return server_link(row.server_id)

    @column("model", ordering="model")
    def model_page(self, row: Placement) -> SafeString | str:
        return model_link(row.model_id)

    list_select_related = ("server", "model")
    search_fields = ("server__name", "model__name", "endpoint")


@admin.register(QuarantinedSlot)
class QuarantinedSlotPages(ReadOnlyAdmin):
    about = (
        "Slots whose GPU may still be busy with a lost run. They are probed, and freed by a proof or by you."
    )
    list_display = (
        "where",
        "reason",
        "job_page",
        "model",
        "since",
        "until",
        "probed_at",
        "freed_at",
        "evidence",
    )
    list_display_links = ("reason",)
    list_filter = (OpenQuarantineFilter,)
    search_fields = ("server__name__exact", "job_id__exact", "attempt_id__exact")
    search_help_text = "Exact match: a server's name, a job's id or an attempt's id."
    ordering = ("-id",)
    sortable_by = ()
    actions = ("free",)

    def has_free_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("gpus.change_server")  # type: ignore[no-any-return]

    @operation("Free the slots", permissions=["free"])
    @confirm_first(
        "Free these slots?",
        "Their GPUs may still be busy with lost runs; two runs would share a GPU then. "
        "Free them only if you are sure that the runs have ended.",
        "Yes, free them",
    )
    def free(self, request: HttpRequest, queryset: QuerySet[QuarantinedSlot]) -> None:
        real = ports.production_ports()
        by, at = actor(request), real.clock.now()

        def free(slot: str) -> str:
            try:
                done = free_slot(slot, by=by, leases=real.leases, at=at)
            except RegistryRefused:
                return "already free"
            real.send_wakes(done.wakes)
            return "freed"

        for_each(request, [slot_name(row.server_id, row.slot) for row in queryset], free)

    @column("slot")
    def where(self, row: QuarantinedSlot) -> SafeString | str:
        return server_link(row.server_id, f"{row.server_id}/{row.slot}")

    @column("job")
    def job_page(self, row: QuarantinedSlot) -> Any:
        return job_link(row.job_id)
