"""Removes one mechanism from the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partialmethod
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from django.db import connection

from artifacts import inputs, outputs, uploads
from artifacts.keys import ObjectKey
from artifacts.store.contract import StoreUnavailable
from foundation.database import statements
from gpus.leasing.library import library_code
from gpus.leasing.store import RedisLeases
from gpus.protocol import ExpiryVerdict, ReleaseMode, split_slot
from jobs import transitions
from jobs.domain.states import AttemptState, JobState
from jobs.execution import claiming, group_commit, row_prefetch, run_outputs
from jobs.explain import decide
from jobs.index_rebuild import rebuild
from jobs.limits import gpu_seconds
from jobs.models import Attempt, Job
from jobs.operations import explain_job
from jobs.sweeps import due_starts
from jobs.sweeps import quotas as sweeps_quotas
from verification.simulation import database, files, redis_link, roles, world
from verification.simulation.artifact_store import SimulatedStore
from workflows.execution import advancer, retried
from workflows.models import Run
from workflows.operations import erase, restart
from workflows.schedules.domain import policy
from workflows.schedules.domain.policy import Lateness, Reason, Step
from workflows.schedules.execution import fire
from workflows.schedules.operations import backfill, store, trigger

Sabotage = Callable[[], Any]


@contextmanager
def each_write_reads_its_own() -> Iterator[None]:
    """Not a mechanism: a write must see what a sabotage did to its row before."""
    with patch.object(group_commit, "unit_of_work", lambda touched: nullcontext()):
        yield


@contextmanager
def result_fence() -> Iterator[None]:
    """Any attempt may write a result."""
    real = transitions.end_attempt

    def end_attempt(end: transitions.End) -> transitions.Ended:
        attempt = Attempt.objects.filter(id=end.attempt_id).first()
        if attempt is not None:
            end = end._replace(epoch=attempt.epoch)
            Attempt.objects.filter(job_id=end.job_id).exclude(id=end.attempt_id).filter(
                state__in=[AttemptState.SENT, AttemptState.WAITING]
            ).update(state=AttemptState.LOST)
            Attempt.objects.filter(id=end.attempt_id).update(state=AttemptState.SENT)
            Job.objects.filter(id=end.job_id).update(state=JobState.RUNNING, live_attempt=end.attempt_id)
        return real(end)

    with patch.object(transitions, "end_attempt", end_attempt), each_write_reads_its_own():
        yield


class _Whatever:
    """Equal to every state."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


@contextmanager
def look_at_the_row() -> Iterator[None]:
    """A claim does not check whether its job still waits, nor does the row prefetch."""
    anything = SimpleNamespace(QUEUED=_Whatever())
    with patch.object(claiming, "JobState", anything), patch.object(row_prefetch, "JobState", anything):
        yield


@contextmanager
def start_compare_and_set() -> Iterator[None]:
    """A start is written whatever state the job is in."""
    real = transitions.start_attempt

    def start_attempt(start: transitions.Start) -> transitions.StartOutcome:
        if not Attempt.objects.filter(id=start.attempt_id).exists():
            Job.objects.filter(id=start.job_id).update(state=JobState.QUEUED, finished_at=None)
        return real(start)

    with patch.object(transitions, "start_attempt", start_attempt), each_write_reads_its_own():
        yield


@contextmanager
def without_sweeps(*names: str) -> Iterator[None]:
    with patch.object(roles, "LEFT_OUT", {*names, *roles.LEFT_OUT}):
        yield


@contextmanager
def quarantine() -> Iterator[None]:
    """A slot is reused even if a run may still be active there."""
    release, resolve = RedisLeases.release, RedisLeases.resolve_expired

    def release_anyway(self: Any, ref: Any, mode: ReleaseMode, **how: Any) -> Any:
        return release(self, ref, ReleaseMode.ENDED if mode is ReleaseMode.SUSPECT else mode, **how)

    def free_anyway(self: Any, ref: Any, verdict: ExpiryVerdict) -> Any:
        return resolve(self, ref, ExpiryVerdict.FREE if verdict is ExpiryVerdict.QUARANTINED else verdict)

    with ExitStack() as stack:
        stack.enter_context(patch.object(RedisLeases, "release", release_anyway))
        stack.enter_context(patch.object(RedisLeases, "resolve_expired", free_anyway))
        stack.enter_context(patch.object(RedisLeases, "quarantine", lambda *_: None))
        yield


@contextmanager
def unique_slot() -> Iterator[None]:
    """Two live attempts may have one slot."""
    real = database.fresh_database

    def fresh(register: Callable[[], None], registry: str) -> None:
        real(register, registry)
        with connection.cursor() as cursor:
            cursor.execute("DROP INDEX one_live_attempt_per_slot")

    with patch.object(world, "fresh_database", fresh):
        yield


@contextmanager
def one_writer_per_run() -> Iterator[None]:
    """An advancer writes its step, with all states of nodes as it read them, also where another one has
    advanced the run meanwhile. Of changed states alone, another one's would stay."""

    def compare_and_set(model: Any, fields: Any, **of: Any) -> bool:
        return statements.change(
            model, fields, **{name: value for name, value in of.items() if name != "steps"}
        )

    instead = SimpleNamespace(**{**vars(statements), "compare_and_set": compare_and_set})
    init = partialmethod(advancer.Advancer.__init__, limits=advancer.AdvancerLimits(members=-1))
    with patch.object(advancer, "statements", instead), patch.object(advancer.Advancer, "__init__", init):
        yield


@contextmanager
def counted_bookings(counts: Counter[str]) -> Iterator[None]:
    """Not a mechanism: counts starts on a slot with a live attempt, and of jobs that moved on."""
    real = transitions.start_attempt

    def start_attempt(start: transitions.Start) -> transitions.StartOutcome:
        outcome = real(start)
        server, slot = split_slot(start.slot)
        live = [AttemptState.SENT, AttemptState.WAITING]
        on_slot = Attempt.objects.filter(server=server, slot=slot, state__in=live).count()
        counts["double_bookings"] += on_slot > 1
        counts["refused_bookings"] += outcome is transitions.StartOutcome.SLOT_TAKEN
        counts["refused_starts"] += outcome is transitions.StartOutcome.JOB_MOVED
        return outcome

    with patch.object(transitions, "start_attempt", start_attempt):
        yield


@contextmanager
def adoption() -> Iterator[None]:
    """A run without a worker is given up, although its server continues it."""
    with patch.object(transitions, "note_remote_id", lambda *_: False):
        yield


@contextmanager
def scripts_without(replaced: Mapping[str, str]) -> Iterator[None]:
    code = library_code()
    for text, instead in replaced.items():
        assert text in code, text
        code = code.replace(text, instead)
    with patch.object(redis_link, "library_code", lambda: code):
        yield


def generation_marker() -> Any:
    """Every index is trusted, also an old one after a failover."""

    mine = "is_of_this_run(redis.call('HMGET', Keys.generation(), 'run_id', 'replication'))"
    return scripts_without({mine: "redis.call('EXISTS', Keys.generation()) == 1"})


def idempotent_requests() -> Any:
    """A script that is sent twice takes effect twice."""

    return scripts_without(
        {
            "local known = Leases.find_lease(attempt)": "local known = nil",
            "local given = Leases.find_lease(next_attempt)": "local given = nil",
        }
    )


@contextmanager
def later_starts() -> Iterator[None]:
    """Jobs for later are queued at once."""
    due = due_starts._due

    def all_of_them(now: datetime) -> Any:
        return [(job_id, now) for job_id, _ in due(now=now + timedelta(hours=1))]

    with patch.object(due_starts, "_due", all_of_them):
        yield


def cancel_beside_a_failure() -> Any:
    """What runs beside a failure that cancels it goes on."""
    return patch.object(advancer, "cancel_nodes", lambda *_: 0)


def handler_at_the_deadline() -> Any:
    """A run past its deadline ends as a cancelled one does, without its node of `on_failure`."""
    return patch.object(advancer, "is_timed_out", lambda run: False)


def refused_restart_of_erased_runs() -> Any:
    """A run is restarted also after its data was erased."""
    real = restart._nodes_again

    def nodes_again(run: Run, *rest: Any) -> Any:
        at, run.erase_requested_at = run.erase_requested_at, None
        again = real(run, *rest)
        run.erase_requested_at = at
        return again

    return patch.object(restart, "_nodes_again", nodes_again)


def data_of_erased_jobs() -> Any:
    """The erasure of a run leaves its jobs' data."""
    return patch.object(erase, "erase_job_data", lambda *_, **__: None)


def output_of_a_retried_sub_run() -> Any:
    """A sub-run that goes on after its failure gives its parent no output."""
    return patch.object(retried, "NodeKind", SimpleNamespace(WORKFLOW=""))


def overlap_of_firings() -> Any:
    """A firing starts whatever else of its schedule runs."""
    return patch.object(fire, "step_of", lambda *_, **__: Step.START)


def pause_of_schedules() -> Any:
    """Due times within a pause are started, once it is over."""
    return patch.object(Lateness, "_is_paused", lambda *_: False)


@contextmanager
def keys_of_triggers() -> Iterator[None]:
    """Each request starts the target, whatever its key."""
    with (
        patch.object(trigger, "earlier_firing", lambda *_: None),
        patch.object(backfill, "earlier_firing", lambda *_: None),
    ):
        yield


def open_due_times_at_an_edit() -> Any:
    """A new timetable begins where the old one was handled last, not at the edit."""
    return patch.object(store, "_open_dues", lambda *_: [])


def limit_of_catching_up() -> Any:
    """Each due time outside a pause is started, however late."""

    def reason(due: datetime, now: datetime, rules: Lateness, **_: bool) -> Reason | None:
        return Reason.PAUSED if rules._is_paused(due) else None

    return patch.object(policy, "_reason", reason)


def reopened_firings() -> Any:
    """A run that is restarted does not open its firing again."""
    return patch.object(world, "reopen", lambda ids: None)


def quota_in_the_rebuild() -> Any:
    """A rebuilt index does not know whose quota is used up."""
    return patch.object(rebuild, "park_exhausted", lambda *_: ())


def ends_in_the_quota() -> Any:
    """Ended runs count once they are summed up, which never happens here."""
    return patch.object(gpu_seconds, "_ended_since", lambda *_: {})


@contextmanager
def end_of_the_quota() -> Iterator[None]:
    """A tenant that was held back once is held back for ever."""
    held: set[int] = set()

    def park_exhausted(fleet: str, leases: Any, tenants: Iterable[int]) -> Any:
        held.update(tenants)
        return gpu_seconds.park_exhausted(fleet, leases, held)

    with patch.object(sweeps_quotas, "park_exhausted", park_exhausted):
        yield


def quota_reason() -> Any:
    """An explanation names another reason instead of the quota."""
    return patch.dict(decide.PARKED, {decide.QUOTA: decide.PARKED[decide.CAP]})


def quota_reason_of_one_tenant_only() -> Any:
    """Every explanation names the quota."""
    return scripts_without({"parked = reasons, fifo": "parked = reasons .. 'q', fifo"})


def quota_at_submit() -> Any:
    """An estimate ignores the quota."""
    return patch.object(explain_job, "quota_refusal", lambda *_: None)


def figures_of_the_quota() -> Any:
    """Active runs are left out of the used quota in an explanation."""
    real = explain_job.quota_of

    def quota_of(*args: Any) -> Any:
        with patch.object(gpu_seconds, "_running", lambda *_: {}):
            return real(*args)

    return patch.object(explain_job, "quota_of", quota_of)


@contextmanager
def second_look() -> Iterator[None]:
    """One answer of the store decides that an object is lost."""
    with ExitStack() as stack:
        for module in (inputs, outputs, uploads):
            stack.enter_context(patch.object(module, "find_expected", lambda store, key: store.find(key)))
        yield


@contextmanager
def objects_before_the_end() -> Iterator[None]:
    """A put counts as done whatever its reply, and the store is not asked before the end is written."""
    real = SimulatedStore.write

    def write(store: SimulatedStore, key: ObjectKey, size: int, chunks: Iterable[bytes]) -> None:
        with suppress(StoreUnavailable):
            real(store, key, size, chunks)

    def secure(tenant_id: int, saved: Any, *_: object) -> Any:
        return list(saved)

    with patch.object(SimulatedStore, "write", write), patch.object(run_outputs, "secure", secure):
        yield


def uses_of_outputs() -> Any:
    """The end of a run does not write that its job uses its outputs."""
    return patch.object(outputs, "add_uses", lambda *_: None)


def objects_without_a_row() -> Any:
    """Objects of runs whose end did not count are never removed."""
    return patch.object(files, "remove_unknown", lambda *_: 0)


MECHANISMS: dict[str, Sabotage] = {
    "result fence": result_fence,
    "look at the row": look_at_the_row,
    "start compare-and-set": start_compare_and_set,
    "reconciler": lambda: without_sweeps("reconcile"),
    "expired leases": lambda: without_sweeps("expired_leases"),
    "quarantine": quarantine,
    "unique slot": unique_slot,
    "adoption": adoption,
    "one writer per run": one_writer_per_run,
    "cancel beside a failure": cancel_beside_a_failure,
    "handler at the deadline": handler_at_the_deadline,
    "refused restart of erased runs": refused_restart_of_erased_runs,
    "data of erased jobs": data_of_erased_jobs,
    "output of a retried sub-run": output_of_a_retried_sub_run,
    "overlap of firings": overlap_of_firings,
    "pause of schedules": pause_of_schedules,
    "keys of triggers": keys_of_triggers,
    "open due times at an edit": open_due_times_at_an_edit,
    "limit of catching up": limit_of_catching_up,
    "reopened firings": reopened_firings,
    "unread notices": lambda: without_sweeps("unread_notices"),
    "generation marker": generation_marker,
    "idempotent requests": idempotent_requests,
    "later starts": later_starts,
    "quota's sweep": lambda: without_sweeps("quotas"),
    "quota in the rebuild": quota_in_the_rebuild,
    "ends in the quota": ends_in_the_quota,
    "end of the quota": end_of_the_quota,
    "quota reason": quota_reason,
    "quota reason of one tenant only": quota_reason_of_one_tenant_only,
    "quota at submit": quota_at_submit,
    "figures of the quota": figures_of_the_quota,
    "second look for an object": second_look,
    "objects before the end": objects_before_the_end,
    "uses of outputs": uses_of_outputs,
    "objects without a row": objects_without_a_row,
}
