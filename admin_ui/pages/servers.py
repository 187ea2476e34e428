"""Pages of servers: their models, health and quarantine, and actions to switch them on and off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from unfold.admin import TabularInline
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter

from admin_ui.actions.machine_actions import MachineActions, circuit_text, close_circuits
from admin_ui.actions.operations import LATER, actor, confirm_first, for_each
from admin_ui.pages.add_model_server import AddModelServer
from admin_ui.pages.server import ServerOverview
from admin_ui.parts.base_pages import ReadOnlyInline
from admin_ui.parts.fleet_forms import PlacementForm, ServerForm
from admin_ui.parts.formatting import DESIRED_LABELS, HEALTH_LABELS, badge, list_link, model_link
from admin_ui.parts.own_changes import OwnChanges
from admin_ui.parts.typed_decorators import column, operation
from foundation.program import command_line
from gpus.models import Placement, QuarantinedSlot, Server
from gpus.protocol import CircuitKind, DesiredState
from gpus.registry.controls import switch_server
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import remove_server
from gpus.registry.upload_url import renew_upload_url
from jobs import ports


class OwnPlacement(OwnChanges, PlacementForm):
    """A row of the server's page."""


class PlacementsOfServer(TabularInline):  # type: ignore[misc]
    model = Placement
    form = OwnPlacement
    extra = 0
    verbose_name = "model"
    verbose_name_plural = "models on this server"
    hide_title = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Placement]:
        """Lock the rows that a POST reads, as the page does with the server's."""
        rows: QuerySet[Placement] = super().get_queryset(request)
        return rows.select_for_update(no_key=True) if request.method == "POST" else rows


class OpenQuarantine(ReadOnlyInline):
    model = QuarantinedSlot
    fields = ("slot", "reason", "job_id", "since", "until", "probed_at")
    verbose_name_plural = "slots in quarantine"

    def get_queryset(self, request: HttpRequest) -> QuerySet[QuarantinedSlot]:
        rows: QuerySet[QuarantinedSlot] = super().get_queryset(request)
        return rows.filter(freed_at=None)


@admin.register(Server)
class ServerPages(MachineActions, AddModelServer, ServerOverview):
    list_before_template = "admin_ui/servers/top.html"
    form = ServerForm
    fixed = ("name", "pool", "slots", "desired")
    audit_values = ("host", "machine")
    list_display = (
        "name",
        "desired_label",
        "health",
        "pool",
        "slots",
        "quarantine",
        "runs",
        "machine",
        "host",
        "checked_at",
    )
    list_filter = (("desired", ChoicesDropdownFilter), "healthy", ("pool", RelatedDropdownFilter))
    search_fields = ("name", "machine", "host")
    actions = (
        "switch_on",
        "drain",
        "switch_off",
        "switch_machines_on",
        "drain_machines",
        "switch_machines_off",
        "close_circuit",
        "renew_upload_keys",
    )
    inlines = (PlacementsOfServer, OpenQuarantine)
    readonly_fields = ("health", "circuit", "boot_id", "checked_at", "last_error")
    fieldsets = (
        (None, {"fields": (("name", "pool"), ("slots", "desired"), ("machine", "host"))}),
        ("Health", {"fields": (("health", "checked_at"), ("boot_id", "last_error"), "circuit")}),
        ("Access", {"fields": ("request_headers", "ca_pem")}),
    )

    @operation("Switch on", permissions=["change"])
    def switch_on(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        self._switch(request, queryset, DesiredState.ON)

    @operation("Drain (running jobs finish, no new job starts)", permissions=["change"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        self._switch(request, queryset, DesiredState.DRAINING)

    @operation("Switch off (running jobs stop and return to the queue)", permissions=["change"])
    @confirm_first(
        "Switch these servers off?", "Running jobs are stopped and return to the queue.", "Yes, switch off"
    )
    def switch_off(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        self._switch(request, queryset, DesiredState.OFF)

    @operation("Close the circuit (problem fixed)", permissions=["change"])
    def close_circuit(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        close_circuits(request, CircuitKind.SERVER, queryset.order_by("name").values_list("name", flat=True))

    @operation("Renew the upload key (Cog)", permissions=["change"])
    @confirm_first(
        "Renew the upload keys of these servers?",
        "The old keys are refused at once: start each Cog container again with its new --upload-url.",
        "Yes, renew",
    )
    def renew_upload_keys(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        def renew(name: str) -> str:
            renew_upload_url(name, by=actor(request))
            return "renewed"

        for_each(request, queryset.order_by("name").values_list("name", flat=True), renew)
        messages.info(request, f"`{command_line('upload_url')} NAME` shows the new address of a server.")

    @column("circuit")
    def circuit(self, server: Server) -> str:
        return circuit_text(CircuitKind.SERVER, server.name, server.pool_id) if server.pk else "–"

    @column("desired")
    def desired_label(self, server: Server) -> SafeString:
        return badge(server.desired, DESIRED_LABELS)

    @column("health")
    def health(self, server: Server) -> SafeString:
        if server.healthy is None:
            return badge("unknown", HEALTH_LABELS)
        if server.healthy and server.tells_health is False:
            return badge("no health endpoint", HEALTH_LABELS)
        return badge("healthy" if server.healthy else "unhealthy", HEALTH_LABELS)

    @column("in quarantine")
    def quarantine(self, server: Any) -> SafeString | str:
        count = server.open_quarantine
        return list_link("gpus_quarantinedslot", {"q": server.name, "open": 1}, count) if count else "–"

    @column("models")
    def runs(self, server: Server) -> SafeString | str:
        names = sorted(placement.model_id for placement in server.placements.all())
        return format_html_join(", ", "{}", ((model_link(name),) for name in names)) or "–"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Server]:
        still = Count("quarantined", filter=Q(quarantined__freed_at=None))
        rows: QuerySet[Server] = super().get_queryset(request).select_related("pool")
        return rows.annotate(open_quarantine=still).prefetch_related("placements")

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """A server with a slot in quarantine is not deleted."""
        deleted, counts, missing, protected = super().get_deleted_objects(objs, request)
        held = QuarantinedSlot.objects.filter(server__in=objs, freed_at=None).order_by("server", "slot")
        return deleted, counts, missing, [*protected, *(f"slot in quarantine: {row}" for row in held)]

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        view = super().delete_view
        answer: HttpResponse = _or_message(request, lambda: view(request, object_id, extra_context))
        return answer

    def response_action(self, request: HttpRequest, queryset: QuerySet[Server]) -> HttpResponse | None:
        act = super().response_action
        answer: HttpResponse | None = _or_message(request, lambda: act(request, queryset))
        return answer

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        remove_server(obj.name, by=actor(request), leases=ports.production_ports().leases)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Server]) -> None:
        for name in list(queryset.values_list("name", flat=True)):
            remove_server(name, by=actor(request), leases=ports.production_ports().leases)

    def _switch(self, request: HttpRequest, queryset: QuerySet[Server], desired: DesiredState) -> None:
        real = ports.production_ports()
        changed = [
            switch_server(name, desired, by=actor(request), leases=real.leases)
            for name in queryset.order_by("name").values_list("name", flat=True)
        ]
        done = [one for one in changed if one is not None]
        real.send_wakes([wake for one in done for wake in one.wakes])
        messages.success(request, f"{len(done)} set to {desired.value}.")
        if not all(one.mirrored for one in done):
            messages.warning(request, LATER)


def _or_message(request: HttpRequest, act: Callable[[], Any]) -> Any:
    """Return the result; if the registry refuses, because it changed since the confirmation, a redirect with
    a message."""
    try:
        return act()
    except RegistryRefused as refusal:
        messages.error(request, str(refusal))
        return redirect(request.get_full_path())
