"""Programs of this repository, forked from a process that has imported what they import.

A program that is started imports for one to two seconds of CPU time: the processes of systems, those that are
restarted there, and commands of the tutorials would do so a hundred times. tests/scenarios/test_up.py starts
them as programs, as a user does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from dispatcher_project.supervisor.embedded import die_with_parent
from foundation.program import ROOT

_PRELOADED = (
    *(
        "celery.app.control",
        "celery.app.log",
        "celery.apps.beat",
        "celery.apps.worker",
        "celery.contrib.django.task",
    ),
    *(
        "celery.concurrency.thread",
        "celery.worker.components",
        "celery.worker.consumer",
        "celery.worker.loops",
    ),
    *("cryptography.fernet", "django.core.management.commands.migrate", "django.db.models.sql.compiler"),
    *("flower.app", "flower.command", "tornado.platform.asyncio"),
    *("uvicorn.lifespan.on", "uvicorn.protocols.http.h11_impl"),
    *(
        "jobs.execution.gpu_worker",
        "jobs.sweeps.runner",
        "jobs.tasks",
        "workflows.sweeps.registry",
        "workflows.tasks",
    ),
    *(
        f"dispatcher_project.{one}"
        for one in ("celery_transport.run", "cli.main", "schedule", "urls", "wiring")
    ),
    *(f"dispatcher_project.management.commands.{one}" for one in ("gpu_worker", "queue_worker", "seed_up")),
    *("dispatcher_project.web.asgi_gateway", "dispatcher_project.web.server"),
)
_defaults: dict[str, str] = {}
"""Variables that imported modules have set, each in the environment of its process."""


class ForkedProcess:
    """A process that runs ``python manage.py …`` or ``python -m …``, with the part of `subprocess.Popen` that
    is used here.

    streams: file descriptors of its standard input, output and error; stdout: None, or a file to read its
    output from. folder: its current directory."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        streams: tuple[int, int, int],
        folder: Path = ROOT,
        pass_fds: Sequence[int] = (),
        stdout: IO[bytes] | None = None,
    ) -> None:
        self.stdout = stdout
        self._exit_code: int | None = None
        preload()
        everything = signal.valid_signals()
        signal.pthread_sigmask(signal.SIG_BLOCK, everything)  # else our handlers would take the child's
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, env, streams=streams, folder=folder, pass_fds=pass_fds)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, everything)

    def poll(self) -> int | None:
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def preload() -> None:
    """The first call imports what the programs import; the settings are those without a data folder."""
    if _PRELOADED[-1] in sys.modules:
        return
    own = dict(os.environ)
    # an app config looks whether there is a NOTIFY_SOCKET
    os.environ.update(DJANGO_SETTINGS_MODULE="dispatcher_project.settings.base", NOTIFY_SOCKET="")
    gc.disable()
    import django

    django.setup()
    for name in _PRELOADED:
        importlib.import_module(name)
    _make_start_cheap()
    known = own.keys() | {"DJANGO_SETTINGS_MODULE", "NOTIFY_SOCKET"}
    _defaults.update((name, os.environ[name]) for name in os.environ.keys() - known)
    _set_environment(own)
    gc.enable()
    gc.collect()
    gc.freeze()
    threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    if threads:
        raise RuntimeError(f"imports started threads, which a fork leaves behind: {threads}")


_HASH_ITERATIONS = 1_000


def _make_start_cheap() -> None:
    """Two thirds of what the first step of `up` costs: it reads all migrations, and hashes a password."""
    from django.contrib.auth.hashers import PBKDF2PasswordHasher
    from django.db.migrations.loader import MigrationLoader

    MigrationLoader(None)
    PBKDF2PasswordHasher.iterations = _HASH_ITERATIONS


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    streams: tuple[int, int, int],
    folder: Path,
    pass_fds: Sequence[int],
) -> NoReturn:
    """Run the program in this forked process, and end it. The parent's objects stay on the stack: none of
    them closes a file descriptor that is another one by now."""
    status = 1
    try:
        _reset_process(streams, pass_fds)
        os.chdir(folder)
        _set_environment({**_defaults, **environment})
        _forget_settings()
        _choose_clock(command)
        status = _run(list(command[1:]))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter's end does
            atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _reset_process(streams: tuple[int, int, int], pass_fds: Sequence[int]) -> None:
    os.setsid()
    die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    for target, source in enumerate(streams):
        os.dup2(source, target)
    start = 3
    for kept in sorted(pass_fds):
        os.closerange(start, kept)
        start = kept + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _forget_settings() -> None:
    """Those of this process's environment are read when the first one is asked for."""
    from django.conf import settings
    from django.db import connections
    from django.utils.functional import empty

    connections.__init__()  # type: ignore[misc]
    connections.__dict__.pop("settings", None)
    for name in ("base", "production", "test", "up"):
        sys.modules.pop(f"dispatcher_project.settings.{name}", None)
    settings._wrapped = empty


def _choose_clock(command: Sequence[str]) -> None:
    """The shim of `verification.proving.clocks` has read the command line of a parent."""
    if "PROVE_CLOCKS" in os.environ:
        words = "\0".join(command).encode()
        ctypes.CDLL(None).find_clock_of(words, len(words))


def _customise() -> None:
    """As Python does when it starts: a scenario names a sitecustomize.py in PYTHONPATH. Its `begin` is called
    in each process."""
    paths = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[1:1] = [one for one in paths if one not in sys.path]
    mine = next((path for one in paths if (path := Path(one, "sitecustomize.py")).exists()), None)
    module = sys.modules.get("sitecustomize")
    if mine is not None and getattr(module, "__file__", None) != str(mine):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    elif begin := getattr(module, "begin", None):
        begin()


def _run(arguments: list[str]) -> int:
    sys.orig_argv = [sys.executable, *arguments]
    _customise()
    try:
        if arguments[0] == "-m":
            sys.path[0] = os.getcwd()
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    return 0
