"""The log pane of a job's page: its last lines, and the link to all of them."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

from admin_ui.parts.base_pages import sees_payloads
from jobs.api.representations import job_url
from jobs.events.log_lines import LogChoice, StoredLine, read_last_lines

MAX_LINES = 300


@dataclass(frozen=True, slots=True)
class JobLog:
    """url: of the whole log as text. is_cut: there are more lines than these."""

    lines: list[StoredLine]
    url: str
    is_cut: bool


def job_log(request: HttpRequest, job_id: str) -> JobLog | None:
    """Return the last lines of a job's log; None if the user may not see what model code writes."""
    if not sees_payloads(request):
        return None
    lines = read_last_lines(job_id, LogChoice(), MAX_LINES + 1)
    return JobLog(lines[-MAX_LINES:], job_url(job_id, "logs"), len(lines) > MAX_LINES)
