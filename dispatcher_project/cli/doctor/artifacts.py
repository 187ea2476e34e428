"""Check of the store of artifacts: it can be used, all hosts that use it see the same one, and it has the
objects of the newest artifacts."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from artifacts.checks import check_store
from artifacts.models import Artifact
from artifacts.store.contract import Store, StoreError
from artifacts.store.local import LocalStore
from artifacts.store.presence import find_expected
from artifacts.store.s3 import NoBoto
from dispatcher_project.cli.doctor.finding import Finding, Level, View
from jobs.reports.store_hosts import store_hosts

_NO_UPLOAD = "No artifact can be uploaded, and jobs can't read theirs."
_SETTING = "DISPATCHER_ARTIFACT_STORE"
_LOOKED_AT = 20


def artifacts(view: View) -> Iterator[Finding]:
    try:
        store = view.ports.artifact_store
        wrong = store.check()
    except (ImproperlyConfigured, NoBoto) as error:
        yield Finding(Level.ERROR, "artifacts", str(error), _NO_UPLOAD, f"correct {_SETTING}")
        return
    if wrong:
        yield Finding(Level.ERROR, "artifacts", wrong, _NO_UPLOAD, f"check the store that {_SETTING} names")
        return
    if isinstance(store, LocalStore) and (user := _user_without_rights(store.root, view.data_folder)):
        yield Finding(
            Level.ERROR,
            "artifacts",
            f"{user}, who owns {view.data_folder} and so runs the services, can't write {store.root}",
            _NO_UPLOAD,
            f"chown {user} {store.root}; run doctor as {user}, since root can write everything",
        )
        return
    hosts = store_hosts(view.now)
    if len(hosts) > 1 and not store.is_shared:
        yield Finding(
            Level.ERROR,
            "artifacts",
            f"they are in a folder of one host, and processes on {len(hosts)} hosts use it: "
            f"{', '.join(hosts[:6])}",
            "Uploads and files of results are refused: processes of another host would not find them.",
            f"set {_SETTING} to s3://BUCKET, or to a folder that all hosts share (?shared=1)",
        )
        return
    for message in check_store(None):
        advice = "lower DISPATCHER_MAX_ARTIFACT_BYTES: the store refuses larger PUTs"
        yield Finding(Level.WARNING, "artifacts", message.msg, message.hint or "", advice)
    yield _objects(store)


def _user_without_rights(folder: Path, data_folder: Path) -> str:
    """Return the services' user if doctor runs as root, and that user can't write the folder, or the nearest
    one above it that exists; else an empty text. A user is asked by a process of that user: modes alone do
    not know of ACLs and of folders above."""
    if os.geteuid() != 0 or (uid := data_folder.stat().st_uid) == 0:
        return ""
    try:
        name = (found := pwd.getpwuid(uid)).pw_name
        group, groups = found.pw_gid, os.getgrouplist(name, found.pw_gid)
    except KeyError:
        name, group, groups = str(uid), data_folder.stat().st_gid, []
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    can_write = ["test", "-w", str(existing), "-a", "-x", str(existing)]
    asked = subprocess.run(can_write, user=uid, group=group, extra_groups=groups, cwd="/", check=False)
    return name if asked.returncode else ""


def _objects(store: Store) -> Finding:
    """After a restore the database may be newer than the store's files, or the store another one."""
    newest = Artifact.objects.filter(state=Artifact.State.STORED).order_by("-id")[:_LOOKED_AT]
    try:
        missing = [row.pk for row in newest if find_expected(store, row.key) is None]
    except StoreError as error:
        return Finding(Level.ERROR, "artifacts", str(error), _NO_UPLOAD, f"check what {_SETTING} names")
    if not missing:
        return Finding(Level.OK, "artifacts", "the store can be used")
    return Finding(
        Level.ERROR,
        "artifacts",
        f"the store lacks {len(missing)} of the newest {len(newest)} artifacts, such as {missing[0]}",
        "Jobs that take them fail (bad_input), and downloads find nothing.",
        f"check that {_SETTING} names the right store; after a restore copy its files back, too. "
        "Clients may also upload them again",
    )
