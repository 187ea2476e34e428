"""A tenant with 100,000 artifacts: pages of the list, one output more, and a collection of garbage.

    python -m benchmarks.many_artifacts                              PostgreSQL, files in a folder
    python -m benchmarks.many_artifacts --database sqlite
    python -m benchmarks.many_artifacts --store s3                   a SeaweedFS of its own

Each line has the milliseconds and SQL statements of one call, or of work that is done in steps the longest
transaction and the time of one object. "beside": of a tenant with ten artifacts. A plan that reads a whole
table is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from benchmarks.artifacts import bucket_of, forget_peak, peak_mb
from benchmarks.databases import LOCAL, environment_with

FEW = 10
STRANGERS = 1000
"""Objects without a row."""
_PAGE, _MOST = 500, 2000
"""As of the sweeps."""
_ROUNDS = 5
_SCANS = ("SCAN artifacts_artifact", "Seq Scan on artifacts_artifact")


@dataclass
class Cost:
    """What a piece of work cost. longest: seconds of its longest transaction. plans: of statements that read
    a whole table."""

    seconds: float = 0.0
    statements: list[tuple[str, Any]] = field(default_factory=list)
    longest: float = 0.0

    def __str__(self) -> str:
        return f"{self.seconds * 1000:8.1f} ms  {len(self.statements):3} statements"


@contextmanager
def measured() -> Iterator[Cost]:
    """Count statements and time transactions of this process."""
    from django.db import connection

    cost, begun = Cost(), [0.0]
    set_autocommit = connection.set_autocommit

    def switch(autocommit: bool, **how: Any) -> None:
        set_autocommit(autocommit, **how)
        if autocommit:
            cost.longest = max(cost.longest, time.monotonic() - begun[0])
        else:
            begun[0] = time.monotonic()

    def note(execute: Any, sql: str, values: Any, many: bool, context: Any) -> Any:
        cost.statements.append((sql, values))
        return execute(sql, values, many, context)

    connection.set_autocommit = switch  # type: ignore[method-assign, assignment]
    began = time.monotonic()
    try:
        with connection.execute_wrapper(note):
            yield cost
    finally:
        cost.seconds = time.monotonic() - began
        del connection.set_autocommit  # the class has it


def best(work: Callable[[], object]) -> Cost:
    """Return the cheapest of some calls: the machine may be busy."""
    costs = []
    for _ in range(_ROUNDS):
        with measured() as cost:
            work()
        costs.append(cost)
    return min(costs, key=lambda cost: cost.seconds)


def whole_scans(cost: Cost) -> Iterator[str]:
    """Yield plans of the reads that go through all artifacts."""
    from django.db import connection

    explain = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
    for sql, values in cost.statements:
        if sql.startswith("SELECT") and "artifacts_artifact" in sql:
            with connection.cursor() as cursor:
                cursor.execute(explain + sql, values)
                plan = [" ".join(str(part) for part in row) for row in cursor.fetchall()]
            if any(scan in line for line in plan for scan in _SCANS):
                yield f"{sql[:200]}\n      " + "\n      ".join(plan)


class Stage:
    """Two tenants with many and with few artifacts, and their objects."""

    def __init__(self, artifacts: int) -> None:
        from artifacts.store.configured import make_store
        from jobs.models import Tenant
        from jobs.operations.tenants import create_key

        self.now = datetime.now(UTC)
        self.store = make_store(lambda: datetime.now(UTC))
        self.many, self.few = Tenant.objects.create(name="many"), Tenant.objects.create(name="few")
        self.keys = {tenant.pk: create_key(tenant)[1] for tenant in (self.many, self.few)}
        self._fill(self.many.pk, artifacts)
        self._fill(self.few.pk, FEW)
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")

    def _fill(self, tenant_id: int, number_of: int) -> None:
        from artifacts.models import Artifact
        from artifacts.quota import merge_changes
        from foundation.ids import new_id

        rows = []
        for number in range(number_of):
            content = self.content(tenant_id, number)
            rows.append(
                Artifact(
                    id=new_id(self.now.timestamp() - number_of + number),
                    tenant_id=tenant_id,
                    sha256=hashlib.sha256(content).hexdigest(),
                    bytes=len(content),
                    state="stored",
                    created_at=self.now,
                    stored_at=self.now - timedelta(days=30),
                    put_until=self.now - timedelta(days=30),
                    expires_at=self.now + timedelta(days=number + 1),
                )
            )
        Artifact.objects.bulk_create(rows, batch_size=1000)
        merge_changes()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self.put, [(tenant_id, number) for number in range(number_of)]))

    def put(self, which: tuple[int, int]) -> None:
        """Store an object, in a folder without waiting for the disk. which: tenant and number."""
        from artifacts.store.local import LocalStore

        content = self.content(*which)
        key = _key(which[0], hashlib.sha256(content).hexdigest())
        if not isinstance(self.store, LocalStore):
            self.store.write(key, len(content), [content])
            return
        path = self.store.root / "a" / str(key.tenant_id) / key.sha256[:2] / key.sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    @staticmethod
    def content(tenant_id: int, number: int) -> bytes:
        return f"{tenant_id} {number}".encode()

    def page(self, tenant_id: int, query: str = "") -> Any:
        """Return a page of the list, as the API answers it."""
        from django.test import Client

        answer = Client().get(
            f"/api/v1/artifacts?{query}", headers={"Authorization": f"Bearer {self.keys[tenant_id]}"}
        )
        if answer.status_code != 200:
            raise SystemExit(f"{answer.status_code} {answer.content[:500]!r}")
        return answer.json()

    def save(self, tenant_id: int, number: int) -> None:
        """Save an output of a run, and end the run with it."""
        from django.db import transaction

        from artifacts.outputs import Maker, Secured, new_output, record, secure
        from foundation.ids import new_id

        now, content = datetime.now(UTC), f"output {tenant_id} {number}".encode()
        attempt = new_id(now.timestamp())
        output = new_output(tenant_id, attempt, hashlib.sha256(content).hexdigest(), len(content), now=now)
        self.store.write(_key(tenant_id, output.sha256), len(content), [content])
        maker = Maker(attempt, attempt, 1)
        secured = secure(tenant_id, [output], maker, self.store, now)
        with transaction.atomic():
            record(Secured(secured, tenant_id, now), maker, now)


def _key(tenant_id: int, sha256: str) -> Any:
    from artifacts.keys import ObjectKey

    return ObjectKey(tenant_id, sha256)


def _say(what: str, cost: Cost, beside: Cost | None = None, more: str = "") -> None:
    ratio = "" if beside is None else f"  {cost.seconds / beside.seconds:5.2f} × beside"
    print(f"{what:<44}{cost}{ratio}{more}", flush=True)
    for plan in whole_scans(cost):
        print(f"   reads all artifacts: {plan}", flush=True)


def _lists(stage: Stage, artifacts: int) -> None:
    from artifacts.models import Artifact

    many, few = stage.many.pk, stage.few.pk
    beside = best(lambda: stage.page(few))
    _say("list, first page", best(lambda: stage.page(many)), beside)
    ids = Artifact.objects.filter(tenant_id=many).order_by("id")
    places = {"middle": artifacts // 2, "last": min(20, artifacts - 1)}
    queries = {f"{name} page": f"cursor={_cursor(ids[place].pk)}" for name, place in places.items()}
    queries |= {f"only {state}": f"state={state}" for state in ("stored", "promised", "gone")}
    for name, query in queries.items():
        _say(f"list, {name}", best(partial(stage.page, many, query)), beside)


def _cursor(position: str) -> str:
    from base64 import b64encode
    from urllib.parse import quote

    return quote(b64encode(f"p={position}".encode()).decode())


def _saves(stage: Stage) -> None:
    numbers = iter(range(1_000_000))
    few = best(lambda: stage.save(stage.few.pk, next(numbers)))
    many = best(lambda: stage.save(stage.many.pk, next(numbers)))
    _say("an output saved and recorded", many, few)


def _steps(what: str, step: Callable[[], int], most: int | None = None) -> None:
    """Do the steps of a sweep until nothing is left, or `most` of them; print the cost of all."""
    forget_peak("self")
    memory, done, longest, slowest = peak_mb("self"), 0, 0.0, 0.0
    began = time.monotonic()
    for _ in count() if most is None else range(most):
        with measured() as cost:
            some = step()
        if not some:
            break
        done, longest, slowest = done + some, max(longest, cost.longest), max(slowest, cost.seconds)
    seconds, memory = time.monotonic() - began, peak_mb("self") - memory
    print(
        f"{what:<44}{done:8} in {seconds:6.1f} s, {seconds / max(1, done) * 1000:6.2f} ms each; slowest step "
        f"{slowest:5.2f} s, longest transaction {longest * 1000:6.1f} ms, {memory:5.1f} MB more",
        flush=True,
    )


def _unknown(stage: Stage) -> None:
    from artifacts.removal import UNKNOWN_TIME, remove_unknown

    first = 10**9
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(stage.put, [(stage.many.pk, first + number) for number in range(STRANGERS)]))
    later = datetime.now(UTC) + UNKNOWN_TIME + timedelta(hours=1)
    objects = stage.store.objects()
    removed = [0]

    def step() -> int:
        page = list(islice(objects, _PAGE))
        removed[0] += remove_unknown(page, stage.store, later).removed
        return len(page)

    _steps("objects listed, unknown ones removed", step)
    print(f"{'':<44}{removed[0]:8} of them unknown", flush=True)


def _collection(stage: Stage, passes: int) -> None:
    from django.db.models import F

    from artifacts.models import Artifact
    from artifacts.removal import TOMBSTONE_TIME, announce_unused, forget_gone, remove_announced

    Artifact.objects.filter(tenant_id=stage.many.pk).update(expires_at=stage.now - timedelta(days=400))
    _steps("expired ones announced", lambda: announce_unused(stage.now, _MOST))
    later = stage.now + 2 * TOMBSTONE_TIME
    _steps("announced ones removed", lambda: remove_announced(stage.store, later, _MOST).looked, passes)
    Artifact.objects.filter(state="gone").update(removed_at=F("expires_at"))
    _steps("rows of removed ones deleted", lambda: forget_gone(stage.now + timedelta(days=400), _MOST))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--database", default=os.environ.get("DISPATCHER_TEST_DATABASE_URL", LOCAL),
                        help="URL of a PostgreSQL server, or sqlite")  # fmt: skip
    parser.add_argument("--store", choices=("folder", "s3"), default="folder")
    parser.add_argument("--artifacts", type=int, default=100_000)
    parser.add_argument("--passes", type=int, default=3, help=f"of the removal of {_MOST} (default 3)")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        name = tempfile.TemporaryDirectory(prefix="bench-artifacts-", dir=os.environ.get("TMPDIR"))
        folder = Path(stack.enter_context(name))
        bucket, _ = stack.enter_context(bucket_of(folder, options.store))
        stack.enter_context(environment_with(options.database, str(folder)))
        os.environ.update(bucket or {"DISPATCHER_ARTIFACT_STORE": str(folder / "store")})
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0, interactive=False)
        began = time.monotonic()
        stage = Stage(options.artifacts)
        print(f"{options.artifacts} artifacts made in {time.monotonic() - began:.0f} s", flush=True)
        _lists(stage, options.artifacts)
        _saves(stage)
        _unknown(stage)
        _collection(stage, options.passes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
