"""GPU-seconds of a run, by node and in all, with those of its sub-runs of all levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db import connection

from jobs.models import Attempt
from workflows.models import Node, Run

_ATTEMPT, _NODE, _RUN = (kind._meta.db_table for kind in (Attempt, Node, Run))
# nested selects, not joins: each job is looked up in the index, whatever the planner expects of `sub_run`
_SQL = f"""
WITH RECURSIVE sub_run(id, base) AS (
    SELECT child.id, node.base FROM {_NODE} node
    JOIN {_RUN} child ON child.parent_node_id = node.id
    WHERE node.run_id = %(run)s AND node.kind = 'workflow'
    UNION ALL
    SELECT child.id, sub_run.base FROM sub_run
    JOIN {_NODE} node ON node.run_id = sub_run.id AND node.kind = 'workflow'
    JOIN {_RUN} child ON child.parent_node_id = node.id
)
SELECT base, SUM(seconds) FROM (
    SELECT base, (
        SELECT SUM(gpu_seconds) FROM {_ATTEMPT} WHERE job_id = {_NODE}.job_id
    ) seconds FROM {_NODE} WHERE run_id = %(run)s AND job_id IS NOT NULL
    UNION ALL
    SELECT base, (
        SELECT SUM((SELECT SUM(gpu_seconds) FROM {_ATTEMPT} WHERE job_id = {_NODE}.job_id))
        FROM {_NODE} WHERE run_id = sub_run.id AND job_id IS NOT NULL
    ) FROM sub_run
) cost GROUP BY base HAVING SUM(seconds) IS NOT NULL ORDER BY base
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU-seconds of the ended attempts of all rounds. by_node: by key in the definition: the children of a
    map are added up, and so are all the sub-runs of a node."""

    by_node: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.by_node.values())


def cost_of(run: Run) -> Cost:
    """Add up a run's GPU-seconds: one query, which reads the rows of its jobs by their indexes."""
    with connection.cursor() as cursor:
        cursor.execute(_SQL, {"run": run.id})
        return Cost({base: float(seconds) for base, seconds in cursor.fetchall()})
