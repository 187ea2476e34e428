"""View of a run's event stream. Under ASGI the gateway keeps the stream open, under plain WSGI the response
has the events so far."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from foundation.http_api.parameters import allow_only
from jobs.api.base import principal_of
from jobs.api.jobs import EventStreamRenderer, last_event_id, stream_schema
from jobs.domain.access import may_see_details, may_see_payloads, shown_streams
from jobs.events.handover import FOLLOW_HEADER, Follow, offered
from jobs.events.hub import done_event
from workflows.api.base import RUN_ID, WorkflowView, visible_run
from workflows.event_stream import PLACE, Place, RunReader

_RULE = "Must be the id of an event of this stream, such as 7 or 7.1200."


class RunEvents(WorkflowView):
    renderer_classes = (EventStreamRenderer, JSONRenderer)

    @stream_schema(
        "follow_run",
        "Events of a run and of all its jobs as they happen (Server-Sent Events)",
        "`Last-Event-ID` continues after an event; events of jobs of the ten seconds before it "
        "may come again: `job_id` and `seq` identify them. The stream ends with `event: done` when the "
        "round has ended. Types of jobs' events begin with `job_`.",
        tag="workflows",
        id_parameter=RUN_ID,
        pattern="^[0-9]{1,9}([.][0-9]{1,18})?$",
    )
    def get(self, request: Request, run_id: str) -> HttpResponse:
        allow_only(request, ("last_event_id",))
        run = visible_run(request, run_id)
        place = last_event_id(request, PLACE, _RULE)
        reader = principal_of(request)
        with_output, in_full = may_see_payloads(reader), may_see_details(reader)
        streams = shown_streams(reader, settings.DISPATCHER.tenant_logs)
        if offered(request.META):
            follow = Follow(run.id, 0, with_output, in_full, reader.name, streams, kind="run", place=place)
            return HttpResponse(headers={FOLLOW_HEADER: follow.as_header()})
        news = RunReader(run.id, Place.of(place)).read(0.0)
        chunks = (
            [event.as_sse(with_output=with_output, in_full=in_full, streams=streams) for event in news.events]
            if news
            else []
        )
        if news is None or news.is_over:
            chunks.append(done_event(run.id, news.status if news else "gone", kind="run"))
        return HttpResponse(b"".join(chunks), content_type="text/event-stream; charset=utf-8")
