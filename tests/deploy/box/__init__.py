"""A machine of a test: its own files (an overlay over this machine's), processes and network. Needs root.

The programs of this folder replace what a machine without systemd and a package mirror lacks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher_project.supervisor.data_folder import ROOT

HERE = Path(__file__).parent
_STANDINS = ("systemctl", "systemd-run", "apt-get", "git", "python3")
_INIT = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir=$BOX/upper,workdir=$BOX/work $BOX/root
for kind in dev sys; do mount --rbind /$kind $BOX/root/$kind; done
mount -t proc proc $BOX/root/proc
mount -t tmpfs tmpfs $BOX/root/run
mount -t tmpfs tmpfs $BOX/root/tmp -o mode=1777
for folder in etc/postgresql var/lib/postgresql var/lib/redis; do  # this machine's own servers write theirs
    mkdir -p $BOX/own/$folder && chown --reference=/$folder $BOX/own/$folder
    mount --bind $BOX/own/$folder $BOX/root/$folder
done
exec chroot $BOX/root sleep infinity
"""


def missing() -> str:
    """Why boxes can't be made here; "" if they can."""
    if os.geteuid() != 0:
        return "needs root"
    programs = ("ip", "unshare", "nsenter", "pg_createcluster", "redis-server", "caddy")
    absent = [name for name in programs if shutil.which(name) is None]
    return f"no {', '.join(absent)} on this machine" if absent else ""


@dataclass
class Box:
    """A running machine."""

    name: str
    folder: Path
    pid: int
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, script: str, *, typed: str = "", seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run lines of bash as root, up to the first that fails. typed: their standard input."""
        words = [
            "nsenter",
            "--target",
            str(self.pid),
            "--mount",
            "--pid",
            "--net",
            "--uts",
            "--root",
            "--wdns=/root",
        ]
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            [*words, "bash", "-euo", "pipefail", "-c", script],
            input=typed,
            env={
                "PATH": path,
                "HOME": "/root",
                "LANG": "C.UTF-8",
                "BOX_SOURCE": str(ROOT),
                **self.environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
        )

    def path(self, path: str) -> Path:
        """Where a file of the box that it wrote itself lies here."""
        return self.folder / "upper" / path.lstrip("/")


@contextlib.contextmanager
def boxes(folder: Path, addresses: Mapping[str, str]) -> Iterator[dict[str, Box]]:
    """Machines by name, with their addresses, on one switch that nothing else is connected to."""
    unique = uuid.uuid4().hex[:6]
    switch = f"walk-{unique}"
    with contextlib.ExitStack() as stack:
        _ip("netns", "add", switch)
        stack.callback(_ip, "netns", "del", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        found = {}
        for number, (name, address) in enumerate(addresses.items()):
            found[name] = stack.enter_context(_box(folder / name, name))
            cable = f"w{unique}{number}"
            peer = ("peer", "name", "eth0", "netns", str(found[name].pid))
            _ip("-n", switch, "link", "add", cable, "type", "veth", *peer)
            _ip("-n", switch, "link", "set", cable, "master", "bridge", "up")
            up = f"ip address add {address}/24 dev eth0; ip link set eth0 up"
            done = found[name].run(f"ip link set lo up; {up}; hostname {name.replace('_', '-')}")
            assert done.returncode == 0, done.stdout
        yield found


@contextlib.contextmanager
def _box(folder: Path, name: str) -> Iterator[Box]:
    for part in ("upper", "work", "root"):
        (folder / part).mkdir(parents=True)
    programs = folder / "upper/usr/local/sbin"
    programs.mkdir(parents=True)
    for program in _STANDINS:
        shutil.copy(HERE / program, programs / program)
        (programs / program).chmod(0o755)
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "bash", "-c", _INIT],
        env={"PATH": os.environ["PATH"], "BOX": str(folder)},
        start_new_session=True,
    )
    try:
        yield Box(name, folder, _child_of(process))
    finally:
        process.send_signal(signal.SIGKILL)  # the box's first process dies with it, and all others with that
        process.wait(60)


def _child_of(process: subprocess.Popen[bytes]) -> int:
    """The box's first process, once it sleeps in its own files."""
    from tests.support.waiting import wait_for

    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def found() -> int:
        assert process.poll() is None, "the box did not start"
        for pid in children.read_text().split():
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                return int(pid)
        return 0

    wait_for(found, seconds=30, what="the box")
    return found()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
