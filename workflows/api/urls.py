from __future__ import annotations

from django.urls import URLPattern, path

from .definitions import WorkflowDetail, Workflows, WorkflowVersionDetail, WorkflowVersions
from .event_view import RunEvents
from .explain_view import ExplainRun
from .nodes import RunNodes
from .run_control import CancelRun, EraseRunData, PauseRun, RestartRun, ResumeRun
from .runs import RunDetail, Runs, StartInlineRun, StartRun
from .schedules import (
    CancelBackfills,
    Firings,
    PauseSchedule,
    PreviewNew,
    PreviewStored,
    ResumeSchedule,
    ScheduleDetail,
    Schedules,
    StartBackfill,
    Trigger,
)
from .waits import AnswerWait, SendSignal

workflow_urls: list[URLPattern] = [
    path("workflows", Workflows.as_view()),
    path("workflows/runs", StartInlineRun.as_view()),
    path("workflows/<str:name>", WorkflowDetail.as_view()),
    path("workflows/<str:name>/versions", WorkflowVersions.as_view()),
    path("workflows/<str:name>/versions/<str:number>", WorkflowVersionDetail.as_view()),
    path("workflows/<str:name>/runs", StartRun.as_view()),
    path("runs", Runs.as_view()),
    path("runs/<str:run_id>", RunDetail.as_view()),
    path("runs/<str:run_id>/nodes", RunNodes.as_view()),
    path("runs/<str:run_id>/data", EraseRunData.as_view()),
    path("runs/<str:run_id>/events", RunEvents.as_view()),
    path("runs/<str:run_id>/explain", ExplainRun.as_view()),
    path("runs/<str:run_id>/cancel", CancelRun.as_view()),
    path("runs/<str:run_id>/pause", PauseRun.as_view()),
    path("runs/<str:run_id>/resume", ResumeRun.as_view()),
    path("runs/<str:run_id>/restart", RestartRun.as_view()),
    path("runs/<str:run_id>/waits/<str:key>", AnswerWait.as_view()),
    path("signals/<str:name>", SendSignal.as_view()),
    path("schedules", Schedules.as_view()),
    path("schedules/preview", PreviewNew.as_view()),
    path("schedules/<str:name>", ScheduleDetail.as_view()),
    path("schedules/<str:name>/preview", PreviewStored.as_view()),
    path("schedules/<str:name>/trigger", Trigger.as_view()),
    path("schedules/<str:name>/backfill", StartBackfill.as_view()),
    path("schedules/<str:name>/backfill/cancel", CancelBackfills.as_view()),
    path("schedules/<str:name>/pause", PauseSchedule.as_view()),
    path("schedules/<str:name>/resume", ResumeSchedule.as_view()),
    path("schedules/<str:name>/firings", Firings.as_view()),
]
