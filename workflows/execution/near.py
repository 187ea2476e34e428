"""Servers on which the jobs of a run's nodes ran: later nodes with `near` prefer them."""

from __future__ import annotations

from jobs.models import Attempt
from workflows.domain.plan import NodeSpec, Plan
from workflows.models import Node, Run

ITEMS = 500
"""Items of a map whose servers are read at once."""


class NearServers:
    """The servers of one step of a run, each read once."""

    def __init__(self, run: Run, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._known: dict[tuple[str, int | None], dict[int | None, str]] = {}

    def server_for(self, node: NodeSpec, index: int | None) -> str | None:
        """Return the server that the job of a node, or of a map's item, prefers; None if it has no `near`, or
        if nothing ran there. An item of a map is near the same item of another map."""
        near = node.options.get("near")
        if near is None:
            return None
        place = index if self._plan.nodes[near].map is not None else None
        first = None if place is None else place - place % ITEMS
        if (near, first) not in self._known:
            self._known[near, first] = self._read(near, first)
        return self._known[near, first].get(place)

    def _read(self, key: str, first: int | None) -> dict[int | None, str]:
        """Return the servers of a node (first: None), or of the items of a map from `first`."""
        rows = Node.objects.filter(run=self._run, base=key)
        if first is None:
            rows = rows.filter(index=None)
        else:
            rows = rows.filter(index__gte=first, index__lt=first + ITEMS)
        ran = rows.order_by("round").values_list("index", "job_id", "cached_from")
        jobs = {index: found for index, job_id, cached_from in ran if (found := job_id or cached_from)}
        attempts = Attempt.objects.filter(job__in=jobs.values()).order_by("number")
        servers = dict(attempts.values_list("job_id", "server"))
        return {index: servers[job_id] for index, job_id in jobs.items() if servers.get(job_id)}
