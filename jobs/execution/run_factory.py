"""Makes the run of a claimed attempt: the request, its files and outputs, and what the run may ask of the
worker."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from django.conf import settings

from foundation.log_lines import RateLimit
from foundation.secrets import signed
from gpus.health.health import evidence_for, refused_url
from gpus.protocol import Clock
from gpus.runners.base import Abort, RunRequest
from jobs.callbacks.guard import refused_origins
from jobs.execution.answer_files import AnswerFiles
from jobs.execution.artifact_inputs import with_input_urls
from jobs.execution.attempt_run import AttemptRun, Order, RunData
from jobs.execution.claiming import Claimed
from jobs.execution.completion import Completion, StartCommit
from jobs.execution.log_events import LogLimits
from jobs.execution.payload_urls import has_urls, with_files_of_urls
from jobs.execution.progress_events import ProgressEvents, progress_events_of
from jobs.execution.pushed_results import PUSH_TOKEN, pushed_body
from jobs.execution.run_outputs import RunOutputs, inline_bytes_of
from jobs.execution.url_files import UrlFiles
from jobs.execution.worker_state import WorkerProcess
from jobs.ports import Ports
from jobs.submission.fetched_urls import UrlFetcher

_LOG_SECONDS_AT_ONCE = 4
"""Seconds of the rate of log lines that a burst may use."""


class RunFactory:
    """Makes the runs of one worker. completion: writes their progress and renews their leases."""

    def __init__(self, ports: Ports, process: WorkerProcess, completion: Completion) -> None:
        self._ports, self._process, self._completion = ports, process, completion
        self._url_fetcher = UrlFetcher()
        per_second = settings.DISPATCHER.log_chars_per_second
        self._log_rate = RateLimit(per_second, _LOG_SECONDS_AT_ONCE * per_second)
        """Characters of log lines of all runs."""

    def make(self, claimed: Claimed, on_sent: Callable[[], None] = lambda: None) -> AttemptRun:
        """Make the run of a claimed attempt. on_sent: as of `RunRequest`."""
        knobs, abort = settings.DISPATCHER, Abort()
        progress_events = self._progress_events(claimed, knobs)
        to_send = self._to_send(claimed, abort, fetches_urls=bool(knobs.fetched_urls))
        outputs = self._outputs(claimed, abort, knobs, has_inputs=to_send is not None)
        run = AttemptRun(
            self._request(claimed, progress_events, outputs, on_sent, knobs),
            self._process.runner_for(claimed.spec),
            _Services(self._ports, self._process, self._completion, claimed),
            deadline=claimed.job["deadline_at"],
            so_far=claimed.so_far,
            data=RunData(
                to_send,
                outputs.keep,
                knobs.artifact_save_seconds,
                abort,
            ),
            progress_events=progress_events,
        )
        if claimed.job["cancel_requested_at"] is not None:
            run.order(Order.CANCEL)
        if claimed.started is not None:
            # weak reference: avoids a reference cycle between run and future
            known = weakref.ref(run)
            claimed.started.add_done_callback(
                lambda started: _stop_if_refused(cast("StartCommit", started), known())
            )
        return run

    def _request(
        self,
        claimed: Claimed,
        progress_events: ProgressEvents,
        outputs: RunOutputs,
        on_sent: Callable[[], None],
        knobs: Any,
    ) -> RunRequest:
        lease = claimed.lease
        tasks_url = f"{knobs.public_url}/api/v1/tasks"
        return RunRequest(
            job_id=lease.job_id,
            attempt_id=lease.attempt_id,
            model=claimed.spec,
            endpoint=claimed.endpoint,
            payload=claimed.job["payload"],
            slot=lease.slot,
            fence=lease.fence,
            push_url=f"{tasks_url}/callback/{lease.job_id}",
            artifact_url=f"{tasks_url}/artifacts/{lease.job_id}",
            push_token=signed(lease.attempt_id, purpose=PUSH_TOKEN),
            limit_seconds=claimed.job["max_run_seconds"] or math.inf,
            report=progress_events.add,
            on_sent=on_sent,
            logs_seen=claimed.so_far.logs_seen,
            save=outputs.save,
            max_file_bytes=knobs.answer_file_bytes,
        )

    def _progress_events(self, claimed: Claimed, knobs: Any) -> ProgressEvents:
        tries = claimed.job["attempts_made"] + claimed.lease.epoch
        allowance = knobs.log_chars_per_job // tries
        limits = (
            LogLimits(allowance, knobs.log_lines_per_second, knobs.log_line_chars, self._log_rate)
            if allowance
            else None
        )
        return progress_events_of(
            partial(self._completion.write_progress, claimed.lease),
            self._completion.writer,
            self._ports.clock,
            tries=tries,
            rest_seconds=knobs.news_seconds,
            log_limits=limits,
        )

    def _outputs(self, claimed: Claimed, abort: Abort, knobs: Any, *, has_inputs: bool) -> RunOutputs:
        """Return what keeps the result and its files. abort: ends the reading of files. has_inputs: the
        server gets signed URLs."""
        inline_bytes = inline_bytes_of(
            claimed.spec, claimed.job.get("followed_by"), knobs.inline_result_bytes
        )
        files = self._answer_files(claimed, abort) if claimed.spec.may_have_files else None
        return RunOutputs(
            claimed.lease, self._ports, inline_bytes=inline_bytes, files=files, has_inputs=has_inputs
        )

    def _answer_files(self, claimed: Claimed, abort: Abort) -> AnswerFiles:
        ports = self._ports
        urls = UrlFiles(
            claimed.endpoint,
            int(claimed.lease.tenant),
            ports.clock,
            lambda: refused_origins(ports.registry),
            abort,
        )
        return AnswerFiles(claimed.spec, ports.schema_processes, urls)

    def _to_send(
        self, claimed: Claimed, abort: Abort, *, fetches_urls: bool
    ) -> Callable[[RunRequest], RunRequest] | None:
        """Return what makes the payload that the server gets; None: it is sent as it is."""
        ports = self._ports
        reads_urls = fetches_urls and has_urls(claimed.spec, claimed.job["payload"])
        if not reads_urls and not claimed.job.get("uses_artifacts"):
            return None
        with_urls = partial(with_input_urls, ports=ports)
        if not reads_urls:
            return with_urls
        fetcher, tenant_id = self._url_fetcher, int(claimed.lease.tenant)
        return lambda request: with_urls(with_files_of_urls(request, tenant_id, fetcher, abort, ports))


class _Services:
    """`RunServices` of a claimed attempt."""

    __slots__ = ("_claimed", "_completion", "_ports", "_process", "clock", "in_background")

    def __init__(
        self, ports: Ports, process: WorkerProcess, completion: Completion, claimed: Claimed
    ) -> None:
        self._ports, self._process, self._completion, self._claimed = ports, process, completion, claimed
        self.clock: Clock = ports.clock
        self.in_background = process.in_background

    def new_event(self) -> threading.Event:
        return self._process.new_event()

    def is_fresh(self) -> bool:
        age = self._completion.keeper.age_seconds(self._claimed.lease)
        return age < settings.DISPATCHER.lease_seconds

    def clocks_agree(self) -> bool:
        return self._ports.clock_watch.report().agree

    def pushed(self) -> Mapping[str, Any] | None:
        with self._ports.database():
            body: Mapping[str, Any] | None = pushed_body.first(attempt_id=self._claimed.lease.attempt_id)
        return body

    def prove_free(self) -> str | None:
        claimed = self._claimed
        return evidence_for(
            claimed.lease.server,
            claimed.lease.attempt_id,
            transport=self._ports.transport,
            leases=claimed.leases,
            clock=self._ports.clock,
        )

    def refused_url(self) -> str:
        lease = self._claimed.lease
        return refused_url(lease.server, lease.model, transport=self._ports.transport)


def _stop_if_refused(started: StartCommit, run: AttemptRun | None) -> None:
    """Stop the run if the database refused its start. run: None if it has ended."""
    if started.refused is not None and run is not None:
        run.order(Order.START_REFUSED)
