"""Clients whose jobs take a file as an artifact, and have a result that becomes one.

Several jobs of a tenant have the same file, so that their uploads meet in one row and one object.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from functools import partial

from django.db import DatabaseError

from artifacts.errors import ArtifactRefused
from artifacts.keys import ObjectKey
from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import REF, only_ref
from artifacts.removal import UNKNOWN_TIME, remove_unknown
from artifacts.store.contract import StoreError
from artifacts.uploads import Wanted, complete, promise
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.ports import Ports
from verification.simulation.clients import Clients, Order
from verification.simulation.size import Size
from verification.simulation.world import WARM_UP_SECONDS, World

DIFFERENT_FILES = 3
"""Of each tenant."""
FILE_BYTES = 2_000
RESULT_CHARS = 300_000
"""Of a long result: more than stays in a job's row."""


def upload(world: World, tenant: int, content: bytes, client: str, content_type: str = "") -> str:
    """Store a file as a client does, again until it is stored; return the id of its artifact. client: for the
    history."""
    wanted = Wanted(tenant, hashlib.sha256(content).hexdigest(), len(content), content_type)

    def ask(ports: Ports) -> Artifact:
        promised = promise(wanted, ports.artifact_store, ports.clock.now())
        if promised.upload is not None:
            world.store.put_signed(promised.upload, content)
            complete(promised.artifact, ports.artifact_store, ports.clock.now(), ports.artifact_completions)
        return promised.artifact

    while True:
        try:
            return str(world.web.call(ask).pk)
        except (ConnectionError, DatabaseError, StoreError, ArtifactRefused) as error:
            world.scheduler.note(client, f"upload failed: {error}")
            world.scheduler.sleep(0.5)


class Files:
    """The jobs with files of a world."""

    def __init__(self, world: World, size: Size, clients: Clients) -> None:
        self._world, self._clients = world, clients
        self._content: dict[str, bytes] = {}
        chance = random.Random(f"{world.seed} files")
        for number in range(size.files):
            order = self._order(chance, number, size)
            clients.add(order, partial(self._upload, order))

    def judge(self) -> Iterator[str]:
        """Yield violations at the end; laws (4) and (13) are checked by others."""
        if not self._content:
            return
        uses = set(ArtifactUse.objects.values_list("job", "artifact_id"))
        rows = {row.pk: row for row in Artifact.objects.all()}
        for order in self._clients.orders:
            for job in Job.objects.filter(id__in=order.job_ids) if order.key in self._content else ():
                yield from self._judge_job(job, order, uses, rows)
        for server in self._world.servers.values():
            yield from (f"file: {text}" for text in server.wrong_files)
        yield from self._judge_store(rows)

    def cost(self) -> dict[str, int]:
        """Return what the files came to."""
        return {
            "files": len(self._content),
            "artifacts": Artifact.objects.count() if self._content else 0,
            "store_requests": self._world.store.requests,
        }

    def _order(self, chance: random.Random, number: int, size: Size) -> Order:
        tenant, key = chance.choice(self._world.tenants), f"file-{number}"
        same = random.Random(f"{self._world.seed} file {tenant} {chance.randrange(DIFFERENT_FILES)}")
        self._content[key] = same.randbytes(FILE_BYTES)
        return Order(
            key=key,
            tenant=tenant,
            model=chance.choice(["zimg", "tiny", "ltx2"]),
            payload={
                "seconds": chance.choice([0.5, 2.0]),
                "fails": 0.0,
                "sha256": hashlib.sha256(self._content[key]).hexdigest(),
                "result_chars": chance.choice([0, RESULT_CHARS]),
            },
            priority=5,
            at=WARM_UP_SECONDS + chance.random() * (2.0 * size.files + size.fault_seconds / 2),
        )

    def _upload(self, order: Order) -> None:
        """Store the order's file and name it in the payload."""
        content = self._content[order.key]
        order.payload["file"] = {REF: upload(self._world, order.tenant, content, order.key)}

    def _judge_job(
        self, job: Job, order: Order, uses: set[tuple[str, str]], rows: dict[str, Artifact]
    ) -> Iterator[str]:
        artifact_id = order.payload["file"][REF]
        row = rows.get(artifact_id)
        if row is None or row.sha256 != order.payload["sha256"]:
            yield f"file: job {job.id} was accepted with {artifact_id}, which is {row}"
        if (job.id, artifact_id) not in uses:
            yield f"file: the use of {artifact_id} by job {job.id} is not stored"
        result_id = only_ref(job.result or {})
        if result_id is not None and (job.id, result_id) not in uses:
            yield f"file: the result {result_id} of job {job.id} is not used by it"
        if job.state == JobState.COMPLETED and order.payload["result_chars"] and job.result is None:
            yield f"file: job {job.id} is completed without a result"

    def _judge_store(self, rows: dict[str, Artifact]) -> Iterator[str]:
        """After the removal of objects that no row names, rows and objects agree."""
        ports = self._world.true_ports()
        store, now = ports.artifact_store, ports.clock.now()
        remove_unknown(list(store.objects()), store, now + 2 * UNKNOWN_TIME)
        stored = {one.key: one.bytes for one in store.objects()}
        known: dict[ObjectKey, Artifact] = {row.key: row for row in rows.values()}
        for key, row in known.items():
            if row.state == Artifact.State.STORED and stored.get(key) != row.bytes:
                yield f"file: artifact {row.pk} of {row.bytes} bytes: the store has {stored.get(key)}"
        yield from (f"file: no row names the object {key}" for key in sorted(stored.keys() - known.keys()))
