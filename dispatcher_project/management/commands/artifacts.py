from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

import jobs.ports
from artifacts.errors import ArtifactRefused
from artifacts.keep import clean_name
from artifacts.models import Artifact
from artifacts.refs import ref
from artifacts.removal import remove_now
from artifacts.store.contract import CHUNK_BYTES, StoreError
from artifacts.store.local import LocalStore
from artifacts.store.s3 import NoBoto
from artifacts.uploads import Wanted, complete, confirm, promise
from dispatcher_client.partial_file import PartialFile
from dispatcher_project.cli.arguments import media_type, positive
from dispatcher_project.cli.command import TerminalCommand, as_json, tenant_named
from dispatcher_project.cli.screen import age, plain, table
from foundation.program import command_line
from gpus.registry.audit import cli_actor, record
from jobs.domain.errors import Refused
from jobs.models import Tenant
from jobs.ports import Ports
from jobs.submission.artifact_refs import require_one_host, require_own_store


class Command(TerminalCommand):
    help = (
        "Artifacts: files that payloads refer to. List them, put a file into the store, get one out of it, "
        "or remove some that no job refers to. `declare` makes the folder of this host the store of the "
        "database."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action",
            nargs="?",
            default="list",
            choices=["list", "put", "get", "rm", "declare"],
            help="default: list",
        )
        parser.add_argument(
            "names", nargs="*", metavar="FILE|ID", help="put: the file; get: id and file; rm: ids"
        )
        parser.add_argument(
            "--tenant",
            help="whose artifacts are listed (default: all), or who owns the file to put (default: operator, "
            "or the only tenant)",
        )
        states = [state.value for state in Artifact.State]
        parser.add_argument("--state", choices=states, help="list only these")
        parser.add_argument("--content-type", type=media_type, help="of the file to put; default: recognised")
        parser.add_argument("--limit", type=positive, default=20, help="rows of list (default 20)")

    def act(self, options: dict[str, Any]) -> int | None:
        ports = jobs.ports.production_ports()
        action = {
            "list": self._list,
            "put": self._put,
            "get": self._get,
            "rm": self._remove,
            "declare": self._declare,
        }
        try:
            action[options["action"]](options, ports)
        except (ArtifactRefused, Refused, StoreError, NoBoto) as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(plain(f"{error.filename or 'the file'}: {error.strerror}")) from None
        return None

    def _list(self, options: dict[str, Any], ports: Ports) -> None:
        if options["names"]:
            raise CommandError("list takes no names: use --tenant and --state")
        rows = Artifact.objects.order_by("-id")
        if options["tenant"] is not None:
            rows = rows.filter(tenant_id=tenant_named(options["tenant"]).pk)
        if options["state"] is not None:
            rows = rows.filter(state=options["state"])
        found = list(rows[: options["limit"]])
        owners = Tenant.objects.filter(pk__in={row.tenant_id for row in found})
        tenants = dict(owners.values_list("pk", "name"))
        shown = [_shown(row, tenants.get(row.tenant_id, str(row.tenant_id))) for row in found]
        if self.as_json:
            self.print_json(shown)
        elif shown:
            now = ports.clock.now()
            cells = [
                (
                    one["id"],
                    plain(one["tenant"], 20),
                    one["state"],
                    f"{one['bytes']:,}",
                    plain(one["content_type"], 30),
                    plain(one["name"], 30),
                    age((now - row.created_at).total_seconds()),
                )
                for one, row in zip(shown, found, strict=True)
            ]
            self.show(table(_HEADS, cells, right=("bytes",)))
        else:
            self.print(f"no artifact: `{command_line('artifacts put FILE')}` puts one there")

    def _put(self, options: dict[str, Any], ports: Ports) -> None:
        if len(options["names"]) != 1:
            raise CommandError("put takes a file")
        path = Path(options["names"][0])
        digest, size = hashlib.sha256(), 0
        for chunk in _chunks(path):
            digest.update(chunk)
            size += len(chunk)
        tenant = tenant_named(options["tenant"])
        require_one_host(ports)
        wanted = Wanted(
            tenant.pk,
            digest.hexdigest(),
            size,
            content_type=options["content_type"] or "",
            name=clean_name(path.name),
            made_by_key="cli",
        )
        store, now = ports.artifact_store, ports.clock.now()
        made = promise(wanted, store, now)
        if made.upload is not None:
            store.write(made.artifact.key, size, _chunks(path))
            complete(made.artifact, store, ports.clock.now(), ports.artifact_completions)
        artifact_id = made.artifact.pk
        if made.upload is not None:
            record(cli_actor(), "put_artifact", f"artifact:{artifact_id}", tenant=tenant.pk, bytes=size)
        document = {
            "id": artifact_id,
            "ref": ref(artifact_id),
            "tenant": tenant.name,
            "bytes": size,
            "sha256": wanted.sha256,
            "exists": made.upload is None,
        }
        there = ", which was there before" if made.upload is None else ""
        self.report(
            document,
            f"{artifact_id}  {plain(path.name, 60)}, {size:,} bytes, of {tenant.name}{there}",
            f"in a payload: {as_json(ref(artifact_id))}",
        )

    def _get(self, options: dict[str, Any], ports: Ports) -> None:
        if len(options["names"]) != 2:
            raise CommandError("get takes an id and the file to write")
        row, path = artifact_row(options["names"][0]), Path(options["names"][1])
        save_artifact(row, path.parent, lambda file: file.replace(path), ports)
        if self.as_json:
            self.print_json({"path": str(path), "bytes": row.bytes, "sha256": row.sha256})
        else:
            self.print(f"{path}: {row.bytes:,} bytes")

    def _remove(self, options: dict[str, Any], ports: Ports) -> None:
        if not options["names"]:
            raise CommandError("rm takes ids of artifacts")
        rows = [artifact_row(name) for name in options["names"]]  # all are checked before one is removed
        require_one_host(ports)
        require_own_store(ports)
        for row in rows:
            detail = {"tenant": row.tenant_id}
            audit = partial(record, cli_actor(), "remove_artifact", f"artifact:{row.pk}", **detail)
            remove_now(row.pk, ports.artifact_store, ports.clock.now(), audit=audit)
        if self.as_json:
            self.print_json({"removed": [row.pk for row in rows]})
        else:
            self.print(f"removed: {', '.join(row.pk for row in rows)}")

    def _declare(self, options: dict[str, Any], ports: Ports) -> None:
        if options["names"]:
            raise CommandError("declare takes no names: DISPATCHER_ARTIFACT_STORE names the folder")
        store = ports.artifact_store
        if not isinstance(store, LocalStore):
            raise CommandError("the store is not a folder: there is nothing to declare")
        with transaction.atomic():
            record(cli_actor(), "declare_store", "store:folder", folder=str(store.root))
            store.declare()
        self.report({"folder": str(store.root)}, f"{store.root} is the store of this database")


_HEADS = ("artifact", "tenant", "state", "bytes", "type", "name", "age")


def save_artifact(row: Artifact, folder: Path, publish: Callable[[PartialFile], Path], ports: Ports) -> Path:
    """Write an artifact to a file, which appears whole and with the right hash; return its path. Raises
    CommandError, StoreError, OSError."""
    confirm([row], ports.artifact_store, ports.clock.now())
    if row.state != Artifact.State.STORED:
        raise CommandError(f"the artifact is {row.state}: the store does not have its bytes")
    file = PartialFile(folder, row.pk, row.bytes, row.sha256)
    try:
        file.restart()
        file.write(ports.artifact_store.chunks(row.key))
        if not file.is_whole():
            raise CommandError("the store's bytes do not have the hash of the artifact")
        return publish(file)
    finally:
        file.close(is_wanted=False)


def artifact_row(artifact_id: str) -> Artifact:
    """Return an artifact that is not gone. Raises CommandError."""
    row = Artifact.objects.filter(pk=artifact_id).first()
    if row is None:
        raise CommandError(f"there is no artifact {plain(artifact_id, 40)}")
    if row.state == Artifact.State.GONE:
        raise CommandError(f"artifact {row.pk} was removed")
    return row


def _shown(row: Artifact, tenant: str) -> dict[str, Any]:
    return {
        "id": row.pk,
        "tenant": tenant,
        "state": row.state,
        "bytes": row.bytes,
        "sha256": row.sha256,
        "content_type": row.content_type,
        "name": row.name,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
