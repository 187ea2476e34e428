"""The rows that one step of a run writes, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from artifacts.models import ArtifactUse
from artifacts.uses import lock_for_use
from foundation.database import statements
from jobs import transitions
from jobs.models import Callback, EndNotice, Job
from workflows.models import CachedOutput, MapChunk, MapFile, MapState, Node, Run, RunEvent, Wait, tags_of


class Overtaken(Exception):
    """Another advancer wrote this run meanwhile, an artifact was removed, or other runs of the tenant used up
    a limit: the step is decided again."""


@dataclass
class Writes:
    """The rows of one transaction."""

    new_nodes: list[Node] = field(default_factory=list)
    ended_nodes: dict[str, Node] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    uses: list[ArtifactUse] = field(default_factory=list)
    run_uses: dict[tuple[str, str], ArtifactUse] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    new_maps: list[MapState] = field(default_factory=list)
    chunks: list[MapChunk] = field(default_factory=list)
    new_files: list[MapFile] = field(default_factory=list)
    files: dict[str, MapFile] = field(default_factory=dict)
    maps: dict[str, MapState] = field(default_factory=dict)
    cached: dict[str, CachedOutput] = field(default_factory=dict)
    callbacks: list[Callback] = field(default_factory=list)
    notices: list[EndNotice] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)

    @classmethod
    def merged(cls, parts: Sequence[Writes]) -> Writes:
        """Return the rows of several runs as one."""
        if len(parts) == 1:
            return parts[0]
        found = cls()
        for part in parts:
            for name, rows in vars(part).items():
                if isinstance(rows, list):
                    getattr(found, name).extend(rows)
                else:
                    getattr(found, name).update(rows)
        return found

    def write(self, now: datetime) -> None:
        """Write all rows. Raises Overtaken."""
        statements.insert_all(self.new_nodes)
        statements.update_all(
            list(self.ended_nodes.values()),
            ["state", "finished_at", "output", "output_artifact", "code", "detail"],
        )
        statements.insert_all(self.new_files)
        statements.update_all(list(self.files.values()), ["offset", "line", "items", "starts", "is_read"])
        statements.insert_all(self.new_maps)
        statements.insert_all(self.chunks)
        statements.update_all(list(self.maps.values()), ["next_index", "running", "completed", "failed"])
        statements.insert_all(self.waits)
        if self.uses or self.run_uses:
            self._use_artifacts()
        if self.jobs:
            statements.write(transitions.new_jobs(self.jobs, now))
        statements.insert_all(self.runs)
        statements.insert_all([tag for run in self.runs for tag in tags_of(run)])
        statements.insert_all(self.events)
        statements.insert_all(self.callbacks)
        statements.insert_all(self.notices)
        statements.upsert_all(list(self.cached.values()))

    def _use_artifacts(self) -> None:
        """Write the uses of artifacts by new jobs, and by runs that took a cached result. If one was removed
        since its check, the step begins anew, and fails the node or runs its job."""
        wanted = {use.artifact_id for use in (*self.uses, *self.run_uses.values())}
        if lock_for_use(wanted) != wanted:
            raise Overtaken
        statements.insert_all(self.uses)
        if self.run_uses:  # the run may have some from earlier nodes
            ArtifactUse.objects.bulk_create(self.run_uses.values(), ignore_conflicts=True)
