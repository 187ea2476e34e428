"""Lists of runs: the filters of the API, of the command `runs` and of the pages."""

from __future__ import annotations

from dataclasses import dataclass, fields

from django.db.models import Exists, OuterRef, Q, QuerySet

from workflows.domain.plan import NodeKind
from workflows.models import Run, RunTag, Wait

NONE, ANY = "none", "any"
"""Values of `RunFilter.parent` besides the id of a run."""
PAUSED = Q(paused_at__isnull=False, finished_at=None)
"""As `Run.is_paused`."""
_WAITS = Wait.objects.filter(
    node__run=OuterRef("pk"), answered_at=None, kind__in=(NodeKind.HUMAN.value, NodeKind.SIGNAL.value)
)
WAITING = Q(Exists(_WAITS), finished_at=None)
"""A node of it waits for a person or a signal."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Filter of runs; None: any.

    workflow: name. parent: `NONE`: runs that were started; `ANY`: their sub-runs too; the id of a run: its
    sub-runs. By default `NONE`; with `waiting`, `ANY`, because the answer goes to the sub-run."""

    status: str | None = None
    workflow: str | None = None
    parent: str | None = None
    tag: str | None = None
    paused: bool | None = None
    waiting: bool | None = None

    def of(self, rows: QuerySet[Run], tenant_id: int | None = None) -> QuerySet[Run]:
        """Return the matching ones of these runs. tenant_id: all of them are this tenant's."""
        if self.status is not None:
            rows = rows.filter(state=self.status)
        if self.workflow is not None:
            rows = rows.filter(version__workflow__name=self.workflow)
        if self.tag is not None:
            rows = rows.filter(has_tag(self.tag, tenant_id))
        for wanted, condition in ((self.paused, PAUSED), (self.waiting, WAITING)):
            if wanted is not None:
                rows = rows.filter(condition if wanted else ~condition)
        return self._of_parent(rows)

    def _of_parent(self, rows: QuerySet[Run]) -> QuerySet[Run]:
        parent = self.parent or (ANY if self.waiting else NONE)
        if parent == ANY:
            return rows
        return rows.filter(parent_node=None) if parent == NONE else rows.filter(parent_node__run=parent)


RUN_FILTERS = tuple(field.name for field in fields(RunFilter))
"""Names of the filters: parameters of the API, options of the command `runs`."""


def has_tag(tag: str, tenant_id: int | None = None) -> Q:
    """Return the condition that a run has a tag. tenant_id: only runs of this tenant are asked about, so the
    tags of others are not read."""
    found = RunTag.objects.filter(tag=tag)
    if tenant_id is not None:
        found = found.filter(tenant=tenant_id)
    return Q(id__in=found.values("run_id"))
