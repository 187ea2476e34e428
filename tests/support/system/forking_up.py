"""`manage.py up` whose children are forked from this process once it has imported what they import.

Each child that is started as a program imports for a second of CPU time, and a system of the scenarios has
seven and restarts some of them. tests/scenarios/test_up.py starts them as programs, as a user does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any, NoReturn

from dispatcher_project.supervisor import child, up
from dispatcher_project.supervisor.embedded import die_with_parent
from dispatcher_project.supervisor.loop import Supervisor
from foundation.program import ROOT
from tests.support.system.programs import DOOR_VARIABLE, LENGTH

PAUSE_SECONDS = 0.1
"""Before a restart, however often a scenario has killed the child."""
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

    outputs: file descriptors of its standard output and error; stdout: None, or a file to read them from."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        outputs: tuple[int, int],
        pass_fds: Sequence[int] = (),
        stdout: IO[bytes] | None = None,
    ) -> None:
        self.stdout = stdout
        self._exit_code: int | None = None
        everything = signal.valid_signals()
        signal.pthread_sigmask(signal.SIG_BLOCK, everything)  # else our handlers would take the child's
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, env, outputs=outputs, pass_fds=pass_fds)
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


def start(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
    """In place of `subprocess.Popen`: what is no Python program of ours is started as one."""
    if command[0] != sys.executable:
        return subprocess.Popen(command, env=env, **options)
    _preload(env)
    reader, writer = os.pipe()
    output = open(reader, "rb", buffering=0)  # noqa: SIM115
    try:
        return ForkedProcess(
            command, env=env, outputs=(writer, writer), pass_fds=options["pass_fds"], stdout=output
        )
    finally:
        os.close(writer)


class ForkingSupervisor(Supervisor):
    """Also forks the programs that `tests.support.system.programs` asks for, and tells their ends."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._programs: list[tuple[ForkedProcess, socket.socket]] = []
        self._door = socket.create_server(os.environ[DOOR_VARIABLE], family=socket.AF_UNIX)
        self._selector.register(self._door, selectors.EVENT_READ, self._start_program)

    def _start_program(self) -> None:
        connection, _ = self._door.accept()
        head, outputs, _, _ = socket.recv_fds(connection, LENGTH.size, 2)
        (length,) = LENGTH.unpack(head)
        asked = json.loads(connection.recv(length, socket.MSG_WAITALL))
        process = ForkedProcess(asked["command"], env=asked["environment"], outputs=(outputs[0], outputs[1]))
        for output in outputs:
            os.close(output)
        connection.sendall(LENGTH.pack(process.pid))
        self._programs.append((process, connection))

    def _turn(self) -> None:
        super()._turn()  # the end of a child ends it
        for one in list(self._programs):
            process, connection = one
            if (code := process.poll()) is not None:
                self._programs.remove(one)
                with connection, contextlib.suppress(OSError):
                    connection.sendall(LENGTH.pack(code))


def _preload(environment: Mapping[str, str]) -> None:
    """With the settings of these variables; the first call does it."""
    if _PRELOADED[-1] in sys.modules:
        return
    own = dict(os.environ)
    os.environ.update(environment, NOTIFY_SOCKET="")  # an app config looks whether there is one
    gc.disable()
    import django

    django.setup()
    for name in _PRELOADED:
        importlib.import_module(name)
    _defaults.update((name, os.environ[name]) for name in os.environ.keys() - environment.keys() - own.keys())
    _set_environment(own)
    gc.enable()
    gc.collect()
    gc.freeze()
    threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    if threads:
        raise RuntimeError(f"imports started threads, which a fork leaves behind: {threads}")


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    outputs: tuple[int, int],
    pass_fds: Sequence[int],
) -> NoReturn:
    """Run the program in this forked process, and end it. The supervisor's objects stay on the stack: none of
    them closes a file descriptor that is another one by now."""
    status = 1
    try:
        _reset_process(outputs, pass_fds)
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


def _reset_process(outputs: tuple[int, int], pass_fds: Sequence[int]) -> None:
    os.setsid()
    die_with_parent()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, *outputs)):
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
    from django.utils.functional import empty

    for name in ("up", "base", "production"):
        sys.modules.pop(f"dispatcher_project.settings.{name}", None)
    settings._wrapped = empty


def _choose_clock(command: Sequence[str]) -> None:
    """The shim of `verification.proving.clocks` has read the command line of `up`."""
    if "PROVE_CLOCKS" in os.environ:
        words = "\0".join(command).encode()
        ctypes.CDLL(None).find_clock_of(words, len(words))


def _run(arguments: list[str]) -> int:
    sys.orig_argv = [sys.executable, *arguments]
    if begin := getattr(sys.modules.get("sitecustomize"), "begin", None):
        begin()
    try:
        if arguments[0] == "-m":
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


def main() -> int:
    up.Supervisor = ForkingSupervisor  # type: ignore[misc]
    child.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=start, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT
    )
    child._FIRST_PAUSE_SECONDS = child._LONGEST_PAUSE_SECONDS = PAUSE_SECONDS
    return up.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
