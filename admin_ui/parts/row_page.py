"""Base of pages of one row that take the place of Django's change form."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.text import capfirst

from admin_ui.parts.base_pages import HistoryAdmin


class RowPage(HistoryAdmin):
    """A page of one row, to look at: only operations change the row.

    row_template: of the page.
    """

    row_template = ""

    def find_row(self, row_id: str, *deferred: str) -> Any:
        """Return the row without the deferred fields; None: there is none."""
        raise NotImplementedError

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return what the template shows."""
        raise NotImplementedError

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        self.require_view(request)
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        row = self.find_row(object_id)
        if row is None:
            gone: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
            return gone
        return self.show_page(request, row)

    def show_page(self, request: HttpRequest, row: Any, **extra: Any) -> HttpResponse:
        """Render the page. extra: changes of its context."""
        context = {
            **self.admin_site.each_context(request),
            **self.page_context(request, row),
            "title": f"{capfirst(str(self.opts.verbose_name))} {row.pk}",
            "opts": self.opts,
            "original": row,
            **extra,
        }
        return TemplateResponse(request, self.row_template, context)

    def row_or_404(self, row_id: str, *deferred: str) -> Any:
        row = self.find_row(row_id, *deferred)
        if row is None:
            raise Http404
        return row

    def require_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied
