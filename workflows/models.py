"""The tables of workflows: definitions and their versions, runs, nodes, maps, waits, events.

Rows hold the whole state of a run; nothing is replayed. They change only by `workflows.execution` (runs and
their nodes) and `workflows.operations` (requests of people and clients).
"""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from foundation.database import statements
from foundation.database.row_codec import new_row
from foundation.ids import new_id
from foundation.names import NameField
from workflows.domain.plan import NodeKind
from workflows.domain.states import FINAL_NODE_STATES, NodeState, RunState

MAX_DEPTH = 8
"""Deepest nesting of sub-workflows."""
_FINAL_RUN = sorted(state.value for state in RunState if state is not RunState.RUNNING)
_FINAL_NODE = sorted(state.value for state in FINAL_NODE_STATES)


INLINE_PREFIX = "_"
"""Begins the name of a workflow whose versions are the definitions of inline runs: no stored workflow and no
reference can have such a name."""
INLINE_LABEL = f"{INLINE_PREFIX}inline"
"""Of inline runs in metrics; also the name where the definition has none."""


def inline_name(name: str | None) -> str:
    """Return the name of the workflow that keeps inline definitions of this name."""
    return INLINE_LABEL if name is None else f"{INLINE_PREFIX}{name}"[:64]


def metric_label(name: str) -> str:
    """Return a workflow's name in metrics: those of inline runs, which have no limit, share one."""
    return INLINE_LABEL if name.startswith(INLINE_PREFIX) else name


def follower_of(run_id: str) -> str:
    """Return the value of `Job.followed_by` of a run's jobs."""
    return f"run:{run_id}"


class Workflow(models.Model):
    """A named definition, or those of inline runs with one name. latest: number of its newest version."""

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.PROTECT, related_name="workflows")
    name = NameField()
    latest = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="one_workflow_per_name")]

    def __str__(self) -> str:
        return self.name


class Version(models.Model):
    """A version of a definition. The database refuses any change of it (`gpus.migrations._append_only`), and
    to delete it while a run has it. sha256: of its canonical JSON."""

    workflow = models.ForeignKey(Workflow, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    spec = models.JSONField()
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["workflow", "-number"]
        constraints = [models.UniqueConstraint(fields=["workflow", "number"], name="versions_are_numbered")]

    def __str__(self) -> str:
        return f"{self.workflow} v{self.number}"


class Run(models.Model):
    """One run of a version.

    node_states: the state of each node, by key: what its rows say, in one place. kept_maps: restarted maps
    whose completed children count, with the round in which these began. steps: raised by each
    transaction that advances the run; a compare-and-set, so that two advancers never both do. round: raised
    by each restart. place_us: place in the queue that all its jobs get, microseconds since the epoch.
    parent_node: of a sub-workflow. erase_requested_at: its own data was erased then; erased_up_to: id of the
    last node whose job's was; erased_at: all is. idempotency_key, fingerprint: of the request that started
    it. event_seq: number of the last event. output_artifact: id of the artifact that has the output as JSON,
    where it is too long for the row; `output` is null then. callback_url: gets a callback at the end of each
    round; empty: none. key_models: models that its jobs may use, those of the key that started or restarted
    it; null: all of the tenant's. failing_step: value of `steps` at which the next step raised; it counts
    while both are equal. step_failures: how often in a row; failing_since: from then on; step_retry_at: no
    sooner again; step_error: for operators.
    """

    id = models.CharField(max_length=26, primary_key=True, default=new_id, editable=False)
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="runs")
    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.PROTECT, related_name="runs")
    state = models.CharField(
        max_length=10, choices=[(s.value, s.value) for s in RunState], default=RunState.RUNNING.value
    )
    round = models.PositiveIntegerField(default=1)
    node_states = models.JSONField(default=dict)
    kept_maps = models.JSONField(default=dict)
    steps = models.PositiveIntegerField(default=0)
    inputs = models.JSONField(null=True, default=None)
    output = models.JSONField(null=True, blank=True, default=None)
    output_artifact = models.CharField(max_length=26, null=True, blank=True, default=None)
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    error_node = models.CharField(max_length=64, blank=True, default="")
    priority = models.PositiveSmallIntegerField(
        default=5, validators=[MinValueValidator(1), MaxValueValidator(9)]
    )
    tags = models.JSONField(default=list, blank=True)
    callback_url = models.CharField(max_length=2000, blank=True, default="", db_default="")
    key_models = models.JSONField(null=True, blank=True, default=None)
    place_us = models.BigIntegerField()
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    parent_node = models.ForeignKey(
        "workflows.Node", on_delete=models.CASCADE, null=True, blank=True, related_name="child_runs"
    )
    erase_requested_at = models.DateTimeField(null=True, blank=True)
    erased_at = models.DateTimeField(null=True, blank=True)
    erased_up_to = models.CharField(max_length=26, null=True, blank=True, default=None)
    idempotency_key = models.CharField(max_length=255, null=True, blank=True, default=None)
    fingerprint = models.CharField(max_length=64, blank=True, default="")
    depth = models.PositiveSmallIntegerField(default=0)
    event_seq = models.PositiveIntegerField(default=0)
    failing_step = models.PositiveIntegerField(null=True, blank=True, default=None)
    step_failures = models.PositiveIntegerField(default=0, db_default=0)
    failing_since = models.DateTimeField(null=True, blank=True)
    step_retry_at = models.DateTimeField(null=True, blank=True)
    step_error = models.TextField(blank=True, default="", db_default="")

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                name="run_finished_at_iff_final",
                condition=(
                    Q(state__in=_FINAL_RUN, finished_at__isnull=False)
                    | (~Q(state__in=_FINAL_RUN) & Q(finished_at__isnull=True))
                ),
            ),
            models.UniqueConstraint(
                fields=["tenant", "idempotency_key"],
                condition=~Q(idempotency_key=None),
                name="one_run_per_idempotency_key",
            ),
            models.CheckConstraint(name="run_depth", condition=Q(depth__lte=MAX_DEPTH)),
            models.UniqueConstraint(
                fields=["parent_node"], condition=~Q(parent_node=None), name="one_run_per_parent_node"
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="run_of_tenant_idx"),
            models.Index(fields=["tenant", "-id"], name="run_started_idx", condition=Q(parent_node=None)),
            models.Index(fields=["id"], name="run_live_idx", condition=Q(finished_at=None)),
            models.Index(
                fields=["erase_requested_at"],
                name="run_erasing_idx",
                condition=Q(erase_requested_at__isnull=False, erased_at=None),
            ),
            models.Index(
                fields=["deadline_at"],
                name="run_deadline_idx",
                condition=Q(deadline_at__isnull=False, finished_at=None),
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def is_paused(self) -> bool:
        """Whether the run is paused and not over: it keeps `paused_at` if it ends during its pause."""
        return self.paused_at is not None and self.finished_at is None

    @property
    def is_failing(self) -> bool:
        """Whether the next step was tried, and raised."""
        return self.failing_step is not None and self.failing_step == self.steps


class RunTag(models.Model):
    """One tag of a run, as an index for filters; `Run.tags` has the tags to show."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="tag_rows")
    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE, related_name="+", db_index=False)
    tag = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tag", "tenant", "run"], name="one_row_per_run_and_tag")
        ]

    def __str__(self) -> str:
        return self.tag


def tags_of(run: Run) -> list[RunTag]:
    """Return the rows of a run's tags, to be inserted with it."""
    return [
        new_row(RunTag, run_id=run.id, tenant_id=run.tenant_id, tag=tag) for tag in dict.fromkeys(run.tags)
    ]


has_live_runs = statements.AnyRow(lambda: Run.objects.filter(finished_at=None))
"""Whether a run has not ended: the one question of the sweeps while there is no work."""


class Node(models.Model):
    """A node of a run in one round, or a child of a map.

    key: ``detect``, or ``detect[17]`` of a child. base: its key in the definition. index: of a child.
    settings: resolved when it started; those of a model node are the payload of its job alone, which can be
    erased. job_id: of a model node; no foreign key, because the run's retention deletes the jobs. output: of
    nodes without a job; that of a model node is its job's result. output_artifact: as of a run.
    cache_key: of `CachedOutput`, where its result is kept. cached_from: id of the job whose result it took.
    """

    id = models.CharField(max_length=26, primary_key=True, default=new_id, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="nodes")
    key = models.CharField(max_length=80)
    base = models.CharField(max_length=64)
    index = models.PositiveIntegerField(null=True, blank=True, default=None)
    round = models.PositiveIntegerField(default=1)
    kind = models.CharField(max_length=8, choices=[(k.value, k.value) for k in NodeKind])
    state = models.CharField(max_length=10, choices=[(s.value, s.value) for s in NodeState])
    settings = models.JSONField(default=dict)
    job_id = models.CharField(max_length=26, null=True, blank=True, default=None)
    cache_key = models.CharField(max_length=64, null=True, blank=True, default=None)
    cached_from = models.CharField(max_length=26, null=True, blank=True, default=None)
    output = models.JSONField(null=True, blank=True, default=None)
    output_artifact = models.CharField(max_length=26, null=True, blank=True, default=None)
    code = models.CharField(max_length=64, blank=True, default="")
    detail = models.TextField(blank=True, default="")
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["run", "id"]
        constraints = [
            # the guard against a node that starts twice
            models.UniqueConstraint(fields=["run", "key", "round"], name="one_node_per_round"),
            models.UniqueConstraint(fields=["job_id"], condition=~Q(job_id=None), name="one_node_per_job"),
            models.CheckConstraint(
                name="node_finished_at_iff_final",
                condition=(
                    Q(state__in=_FINAL_NODE, finished_at__isnull=False)
                    | (~Q(state__in=_FINAL_NODE) & Q(finished_at__isnull=True))
                ),
            ),
        ]
        indexes = [
            models.Index(fields=["run"], name="node_open_idx", condition=Q(finished_at=None)),
            models.Index(fields=["run", "base", "index"], name="node_of_base_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.key}"


class CachedOutput(models.Model):
    """The job whose result nodes with the same content take. key: `workflows.execution.cache`."""

    key = models.CharField(max_length=64, primary_key=True)
    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE, related_name="+")
    job_id = models.CharField(max_length=26)
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.key[:12]} {self.job_id}"


class MapState(models.Model):
    """How far a map has come. node: its own row. total: items of the list. first_round: children since then
    count. todo: indices to run, of a restarted map; None: all. next_index: place in these of the first child
    that has not started."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="map_state")
    total = models.PositiveIntegerField()
    first_round = models.PositiveIntegerField(default=1)
    todo = models.JSONField(null=True, default=None)
    next_index = models.PositiveIntegerField(default=0)
    running = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="map_counts",
                condition=Q(next_index__lte=F("total"))
                & Q(next_index=F("running") + F("completed") + F("failed")),
            )
        ]

    def __str__(self) -> str:
        return f"{self.node_id} {self.next_index}/{self.total}"


class MapChunk(models.Model):
    """Up to 500 items of a map. first: index of the first one."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="chunks")
    first = models.PositiveIntegerField()
    items = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "first"], name="one_chunk_per_place")]

    def __str__(self) -> str:
        return f"{self.node_id} {self.first}"


class MapFile(models.Model):
    """The artifact of JSON lines whose lines are the items of a map, which gets its `MapState` once all of it
    was read. offset: of the next byte to read. line: lines before it. items: those that are not blank.
    starts: the offset and the line of every 500th item."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="map_file")
    artifact = models.CharField(max_length=26)
    offset = models.BigIntegerField(default=0)
    line = models.PositiveIntegerField(default=0)
    items = models.PositiveIntegerField(default=0)
    starts = models.JSONField(default=list)
    is_read = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.node_id} {self.artifact}"


class Wait(models.Model):
    """What a human, signal or timer node waits for. due_at: of a timer, or of the expiry. answer: JSON;
    answered_at decides whether there is one."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="wait")
    kind = models.CharField(max_length=8, choices=[(k.value, k.value) for k in NodeKind])
    signal = models.CharField(max_length=64, blank=True, default="")
    options = models.JSONField(default=dict)
    due_at = models.DateTimeField(null=True, blank=True)
    answer = models.JSONField(null=True, blank=True, default=None)
    answered_at = models.DateTimeField(null=True, blank=True)
    answered_by = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        indexes = [
            models.Index(
                fields=["due_at"],
                name="wait_due_idx",
                condition=Q(due_at__isnull=False, answered_at=None),
            ),
            models.Index(fields=["signal"], name="wait_signal_idx", condition=Q(answered_at=None)),
        ]

    def __str__(self) -> str:
        return f"{self.node_id} {self.kind}"


class SentSignal(models.Model):
    """A signal or an answer that was sent with an Idempotency-Key. fingerprint: of the request. taken: nodes
    that took it. Written in the transaction that ends their waits; deleted by the sweep `old_signals`."""

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64)
    taken = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="one_signal_per_key")]

    def __str__(self) -> str:
        return self.key


class RunEvent(models.Model):
    """An event of a run. seq: from 1, in the order of commits."""

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    type = models.CharField(max_length=32)
    at = models.DateTimeField()
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["run", "seq"]
        constraints = [models.UniqueConstraint(fields=["run", "seq"], name="run_events_are_numbered")]

    def __str__(self) -> str:
        return f"{self.run_id} {self.seq} {self.type}"
