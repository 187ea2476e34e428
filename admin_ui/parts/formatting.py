"""Formats values for pages: states as coloured labels, JSON as indented text, durations, links to jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from admin_ui.dashboard.labels import age
from gpus.protocol import DesiredState
from jobs.domain.states import AttemptState, JobState
from jobs.models import Callback, Job, Tenant
from jobs.reports.progress import progress_of

JSON_SHOWN = 20_000
"""Characters of a JSON value that a page shows; results may have megabytes."""

JOB_LABELS = {
    JobState.RUNNING.value: "info",
    JobState.RETRYING.value: "warning",
    JobState.CANCELLING.value: "warning",
    JobState.COMPLETED.value: "success",
    JobState.FAILED.value: "danger",
}
ATTEMPT_LABELS = {
    AttemptState.SENT.value: "info",
    AttemptState.WAITING.value: "info",
    AttemptState.COMPLETED.value: "success",
    AttemptState.FAILED.value: "danger",
    AttemptState.LOST.value: "danger",
    AttemptState.REFUSED.value: "warning",
}
CALLBACK_LABELS = {
    Callback.State.PENDING.value: "info",
    Callback.State.DELIVERED.value: "success",
    Callback.State.GAVE_UP.value: "danger",
    Callback.State.GONE.value: "warning",
}
DESIRED_LABELS = {
    DesiredState.ON.value: "success",
    DesiredState.DRAINING.value: "warning",
    DesiredState.OFF.value: "danger",
}
HEALTH_LABELS = {"healthy": "success", "unhealthy": "danger"}


def badge(value: str, colours: Mapping[str, str]) -> SafeString:
    """Return a coloured label; a value without a colour is grey."""
    return _label(value.replace("_", " "), colours.get(value))


RUN_LABELS = {"completed": "success", "failed": "danger", "running": "info", "cancelled": "warning"}
"""Colours of the states of runs and nodes; the others are grey."""


def attempt_badge(state: str) -> SafeString:
    """Return the label of an attempt's state; both live states, sent and waiting, are shown as running."""
    is_live = state in (AttemptState.SENT.value, AttemptState.WAITING.value)
    return _label("running" if is_live else state, ATTEMPT_LABELS.get(state))


def job_badge(job: Job) -> SafeString:
    """Return the label of a job's state, and the percent of a running one that reports progress."""
    progress, label = progress_of(job), badge(job.state, JOB_LABELS)
    if progress is None:
        return label
    return format_html("<span>{} {} %</span>", label, percent(progress.value))


def percent(share: float) -> str:
    """Return a share of 1 as percent, without the sign."""
    return f"{share * 100:.0f}"


@lru_cache(maxsize=256)
def _label(text: str, colour: str | None) -> SafeString:
    """Cached: a list renders the same few labels fifty times."""
    return render_to_string("unfold/helpers/label.html", {"text": text, "type": colour})


def json_block(value: Any) -> SafeString | str:
    """Return the value as indented, escaped JSON; after `JSON_SHOWN` characters it is cut, with a note."""
    if value is None:
        return "–"
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    if len(text) > JSON_SHOWN:
        text = f"{text[:JSON_SHOWN]}\n… {len(text) - JSON_SHOWN:,} more characters"
    return format_html('<pre class="json-block" tabindex="0">{}</pre>', text)


def span(begin: datetime | None, end: datetime | None) -> str:
    """Format the time between two moments, as in ``1:02:03``; a dash if one of them is None."""
    if begin is None or end is None:
        return "–"
    return seconds((end - begin).total_seconds())


def seconds(value: float | None) -> str:
    """Format a duration: ``420 ms``, ``4.20 s``, ``12.3 s``, ``0:05:07``; None is a dash."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    return str(timedelta(seconds=round(value)))


def page_link(page: str, pk: str | int, text: str) -> SafeString | str:
    """Return a link to a row's page. page: such as ``gpus_server``. pk: empty: a dash."""
    if pk == "":
        return "–"
    return format_html('<a href="{}">{}</a>', reverse(f"admin:{page}_change", args=[quote(pk)]), text)


def server_link(name: str, text: str = "") -> SafeString | str:
    """Return a link to a server's page. text: empty: its name."""
    return page_link("gpus_server", name, text or name)


def model_link(name: str) -> SafeString | str:
    return page_link("gpus_modelconfig", name, name)


def tenant_link(tenant: Tenant | None) -> SafeString | str:
    """Return a link to the tenant's page. tenant: read with the row."""
    return "–" if tenant is None else page_link("jobs_tenant", tenant.pk, tenant.name)


def list_link(page: str, query: Mapping[str, object], text: object) -> SafeString:
    """Return a link to a filtered list. page: such as ``jobs_job``."""
    address = f"{reverse(f'admin:{page}_changelist')}?{urlencode(query)}"
    return format_html('<a href="{}">{}</a>', address, text)


def time_and_age(at: datetime | None) -> SafeString | str:
    """Return a time in UTC; a phone shows its age instead."""
    if at is None:
        return "–"
    return format_html(
        '<time datetime="{}"><span class="on-wide">{}</span><span class="on-phone">{} ago</span></time>',
        at.isoformat(),
        f"{at:%Y-%m-%d %H:%M:%S}",
        age((timezone.now() - at).total_seconds()),
    )


def job_link(job_id: str) -> SafeString | str:
    """Return a link to the job's page. It needs only the id, so no query."""
    if not job_id:
        return "–"
    return format_html(
        '<a href="{}" class="mono">{}</a>', reverse("admin:jobs_job_change", args=[job_id]), job_id
    )


def run_link(run_id: str | None) -> SafeString | str:
    """Return a link to the page of a workflow run. It needs only the id, so no query."""
    if not run_id:
        return "–"
    page = reverse("admin:workflows_run_change", args=[run_id])
    return format_html('<a href="{}" class="mono">{}</a>', page, run_id)


def follower_link(name: str | None) -> SafeString | str:
    """Return a link to the follower of a job (`Job.followed_by`), or to the subject of a callback."""
    kind, _, run_id = (name or "").partition(":")
    return run_link(run_id) if kind == "run" else name or "–"
