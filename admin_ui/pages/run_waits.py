"""Forms of what a run waits for. Human nodes: choices, with pictures where values are such, or fields made
from the JSON Schema of the form. Signals: fields made from the schema of the body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Min, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.safestring import SafeString

from admin_ui.actions.operations import actor
from admin_ui.actions.run_actions import RunActions
from admin_ui.parts.base_pages import sees_payloads
from admin_ui.parts.row_page import RowPage
from admin_ui.parts.schema_fields import LABEL_SHOWN, MAX_CHOICES, SchemaFields, Unreadable, fields_of
from admin_ui.parts.viewer import find_media, one_line_json, show_json
from artifacts.models import Artifact
from jobs import ports
from jobs.domain.errors import Refused
from workflows.domain.plan import NodeKind
from workflows.models import Node, Run, Wait
from workflows.operations.answers import answer_wait
from workflows.operations.signals import send_signal

MAX_WAITS = 20
"""Forms on a page, of human nodes and of signals each."""
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp|avif|bmp);base64,[A-Za-z0-9+/=\s]+\Z")


@dataclass(frozen=True, slots=True)
class Choice:
    """A value to choose. place: in the list. image: address of its picture; empty: none. link: of another
    host; only a link, so that looking sends no request elsewhere."""

    place: int
    label: str
    image: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What a human node asks. node_id: of its row. form: None: one of the choices. is_cut: choices are
    missing. schema: of the form, as coloured JSON. errors: of an answer that was sent, without those at
    fields. answer_by: names of the API keys that may answer besides operators; empty: all may."""

    node_id: str
    key: str
    title: str
    due_at: datetime | None
    choices: list[Choice] = field(default_factory=list)
    form: SchemaFields | None = None
    is_cut: bool = False
    schema: SafeString | str = ""
    errors: list[str] = field(default_factory=list)
    answer_by: str = ""


@dataclass(frozen=True, slots=True)
class SignalForm:
    """A signal that nodes wait for. node_id, key, due_at: of the first one. nodes: their number. schema: of
    the body, as coloured JSON; empty: it has none. errors: as of a question."""

    node_id: str
    name: str
    key: str
    nodes: int
    due_at: datetime | None
    form: SchemaFields
    schema: SafeString | str = ""
    errors: list[str] = field(default_factory=list)


def questions_of(run: Run, *, host: str) -> list[Question]:
    """Return the open questions of a run, at most `MAX_WAITS`. host: our own; its images are shown."""
    waits = _open_waits(run, NodeKind.HUMAN).select_related("node").order_by("node_id")
    return [question_of(wait, host=host) for wait in waits[:MAX_WAITS]]


def question_of(wait: Wait, *, host: str) -> Question:
    """Return what a wait asks."""
    options = wait.options
    title = str(options.get("title") or "")[:LABEL_SHOWN]
    answer_by = ", ".join(options.get("answer_by") or ())
    values = options.get("choose_from")
    if isinstance(values, list):
        pictures = _artifacts(values[:MAX_CHOICES])
        choices = [_choice(place, value, host, pictures) for place, value in enumerate(values[:MAX_CHOICES])]
        cut = len(values) > MAX_CHOICES
        return Question(
            wait.node_id, wait.node.key, title, wait.due_at, choices, is_cut=cut, answer_by=answer_by
        )
    schema = options.get("form")
    fields, shown = _answer_fields(wait), show_json(schema).html
    return Question(
        wait.node_id, wait.node.key, title, wait.due_at, form=fields, schema=shown, answer_by=answer_by
    )


def signals_of(run: Run) -> list[SignalForm]:
    """Return the signals that a run waits for, at most `MAX_WAITS`; each once, however many nodes wait."""
    waits = _open_waits(run, NodeKind.SIGNAL)
    rows = waits.order_by().values("signal").annotate(first=Min("node_id"), nodes=Count("node_id"))
    found = list(rows.order_by("first")[:MAX_WAITS])
    first = Wait.objects.select_related("node").in_bulk([row["first"] for row in found])
    return [_signal_form(first[row["first"]], row["nodes"]) for row in found if row["first"] in first]


def _open_waits(run: Run, kind: NodeKind) -> QuerySet[Wait]:
    return Wait.objects.filter(node__run=run, node__finished_at=None, kind=kind.value, answered_at=None)


def _signal_form(wait: Wait, nodes: int) -> SignalForm:
    schema = wait.options.get("body_schema")
    shown = show_json(schema).html if isinstance(schema, Mapping) else ""
    return SignalForm(
        wait.node_id, wait.signal, wait.node.key, nodes, wait.due_at, _body_fields(wait), schema=shown
    )


def _answer_fields(wait: Wait) -> SchemaFields:
    return fields_of(wait.options.get("form"), "Answer")


def _body_fields(wait: Wait) -> SchemaFields:
    return fields_of(wait.options.get("body_schema"), "Body", required=False)


def _artifacts(values: list[Any]) -> set[str]:
    """Return the ids of images among the artifacts that these values refer to."""
    ids = [ref for value in values if isinstance(ref := _ref(value), str)]
    found = Artifact.objects.filter(id__in=ids, content_type__startswith="image/") if ids else ()
    return {artifact.id for artifact in found}


def _ref(value: Any) -> Any:
    return value.get("$artifact") if isinstance(value, dict) else None


def _choice(place: int, value: Any, host: str, pictures: set[str]) -> Choice:
    label = value if isinstance(value, str) else one_line_json(value)
    short = label if len(label) <= LABEL_SHOWN else f"{label[:LABEL_SHOWN]}…"
    ref = _ref(value)
    if isinstance(ref, str) and ref in pictures:
        return Choice(place, short, image=f"/api/v1/artifacts/{ref}")
    for media in find_media(value, host=host)[:1]:
        if media.is_embedded:
            if _IMAGE.match(media.text):
                return Choice(place, f"Image {place + 1}", image=media.text)
        elif media.kind == "image":
            return Choice(place, short, image=media.text)
        elif media.kind == "link":
            return Choice(place, short, link=media.text)
    return Choice(place, short)


def read_answer(wait: Wait, sent: Mapping[str, str]) -> Any:
    """Return the answer that a form sent. Raises Unreadable."""
    values = wait.options.get("choose_from")
    if not isinstance(values, list):
        return _answer_fields(wait).read(sent)
    place = sent.get("choice", "")
    if not (place.isascii() and place.isdigit() and len(place) < 7 and int(place) < len(values)):
        raise Unreadable({"": "Choose one of the values."})
    return values[int(place)]


class WaitForms(RunActions, RowPage):
    """Mixin of the runs' admin: answers to questions, and signals."""

    def get_urls(self) -> list[URLPattern]:
        views = self.routes(
            ("<str:run_id>/answer/<str:node_id>/", self.answer, "workflows_run_answer"),
            ("<str:run_id>/signal/<str:node_id>/", self.signal, "workflows_run_signal"),
        )
        return [*views, *super().get_urls()]

    def answer(self, request: HttpRequest, run_id: str, node_id: str) -> HttpResponse:
        """POST: answer a human node. The choices may be payloads, so it takes the permission to see them."""
        if not self.may_answer(request):
            raise PermissionDenied
        page = _page_of(run_id)
        if request.method != "POST":
            return page  # the address of a form with errors, opened again
        run, wait = self._wait(run_id, node_id, NodeKind.HUMAN)
        newest = Node.objects.filter(run=run, key=wait.node.key).order_by("-round").only("id").first()
        if newest is None or newest.id != wait.node_id:
            messages.warning(request, "The node was restarted meanwhile. Look at its new question.")
            return page
        sent, by = request.POST.dict(), actor(request)
        try:
            value = read_answer(wait, sent)
            answer_wait(
                run,
                wait.node.key,
                value,
                by=by,
                round_number=wait.node.round,
                ports=ports.production_ports(),
            )
        except (Unreadable, Refused) as refusal:
            errors = _errors(refusal, "/answer")
            if errors is None:
                messages.error(request, str(refusal))
                return page
            questions = [
                _with_errors(one, sent, errors) if one.node_id == node_id else one
                for one in questions_of(run, host=request.get_host())
            ]
            return self.show_page(request, run, questions=questions)
        messages.success(request, f"{wait.node.key} is answered.")
        return page

    def signal(self, request: HttpRequest, run_id: str, node_id: str) -> HttpResponse:
        """POST: send the signal that a node waits for, to this run or to all runs of its tenant."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        page = _page_of(run_id)
        if request.method != "POST":
            return page
        run, wait = self._wait(run_id, node_id, NodeKind.SIGNAL)
        sent = request.POST.dict()
        try:
            taken = send_signal(
                run.tenant_id,
                wait.signal,
                _body_fields(wait).read(sent),
                run_id=None if "everywhere" in sent else run.id,
                by=actor(request),
                ports=ports.production_ports(),
            ).taken
        except (Unreadable, Refused) as refusal:
            errors = _errors(refusal, "/body")
            if errors is None:
                messages.error(request, str(refusal))
                return page
            signals = [
                _with_errors(one, sent, errors) if one.name == wait.signal else one for one in signals_of(run)
            ]
            return self.show_page(request, run, signals=signals)
        if taken:
            nodes = f"{taken} node{'s' if taken > 1 else ''}"
            messages.success(request, f"{nodes} took the signal {wait.signal}.")
        else:
            messages.warning(request, f"No node waits for the signal {wait.signal} any more.")
        return page

    def may_answer(self, request: HttpRequest) -> bool:
        return self.has_operate_permission(request) and sees_payloads(request)

    def _wait(self, run_id: str, node_id: str, kind: NodeKind) -> tuple[Run, Wait]:
        run: Run = self.row_or_404(run_id)
        waits = Wait.objects.select_related("node").filter(node__run_id=run_id, kind=kind.value)
        wait = waits.filter(node_id=node_id).first()
        if wait is None:
            raise Http404
        return run, wait


def _page_of(run_id: str) -> HttpResponse:
    return redirect(reverse("admin:workflows_run_change", args=[run_id]))


def _errors(refusal: Unreadable | Refused, place: str) -> Mapping[str, str] | None:
    """Return the errors of a sent value by JSON pointer into the value; None: the refusal has another reason.
    place: pointer of the value in a request."""
    if isinstance(refusal, Unreadable):
        return refusal.errors
    if refusal.pointer is None:
        return None
    return {refusal.pointer.removeprefix(place): str(refusal)}


def _with_errors(form: Question | SignalForm, sent: Mapping[str, str], errors: Mapping[str, str]) -> Any:
    """Return a form as it was sent, with its errors."""
    if form.form is None:
        return replace(form, errors=list(errors.values()))
    return replace(form, form=form.form.sent(sent, errors), errors=form.form.others(errors))
