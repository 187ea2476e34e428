"""The health port of a worker or of beat: /livez and /readyz, for container health checks and probes.

Live: the main loop turns, or reconnects to its broker. Ready: the services it needs answer. Liveness also
feeds systemd's watchdog (``WatchdogSec=``).
"""

from __future__ import annotations

import errno
import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog
from celery import bootsteps
from django.conf import settings
from django.db import connection

from dispatcher_project.celery import app
from dispatcher_project.settings.dispatcher import split_address
from dispatcher_project.supervisor.notify import ALIVE, notify
from foundation.probes import Probes
from foundation.threaded_http import Connections, TimedReader
from gpus.errors import LayoutNotInUse
from gpus.registry import queries

log = structlog.get_logger(__name__)

Question = Callable[[], str]
"""A readiness check: returns the error, or "" if there is none. It may raise."""

TICK_SECONDS = 1.0
_BIND_AGAIN_SECONDS = 0.5
_REQUEST_SECONDS = 5.0
_MAX_CONNECTIONS = 32
_NO_DESCRIPTOR_SECONDS = 0.05


class Loop:
    """The time of the last turn of a process's main loop. Turns of threads other than the creating one are
    ignored, because they connect to the broker too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._turned_at = clock()
        self.consumes = False
        """True while the process is connected to the broker and consumes messages."""

    def turn(self) -> None:
        if threading.get_ident() == self._thread:
            self._turned_at = self._clock()

    @property
    def age_seconds(self) -> float:
        return self._clock() - self._turned_at


class TicksOfLoop(bootsteps.StartStopStep):  # type: ignore[misc]
    """Step of a Celery consumer: a timer, driven by the consumer's loop, that calls `Loop.turn`."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    loop: Loop | None = None
    """The loop of this process; a class attribute, because Celery instantiates the step."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._timer: Any = None
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        if self.loop is not None:
            self.loop.turn()
            self.loop.consumes = True
            self._timer = consumer.timer.call_repeatedly(TICK_SECONDS, self.loop.turn)

    def stop(self, consumer: Any) -> None:
        if self.loop is not None:
            self.loop.turn()
            self.loop.consumes = False
        if self._timer is not None:
            consumer.timer.cancel(self._timer)
            self._timer = None


class Health:
    """Liveness and readiness of a process.

    draining: returns True while the process stops, within a time that is limited elsewhere. needs: checks by
    name; all must pass. any_of: checks; one of them must pass; the others make the process `degraded`.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        draining: Callable[[], bool] = lambda: False,
        needs: Mapping[str, Question],
        any_of: Callable[[], Mapping[str, Question]] = dict,
    ) -> None:
        self._loop, self._draining, self._needs, self._any_of = loop, draining, needs, any_of
        self._probes = Probes()

    def is_live(self) -> bool:
        return self._draining() or self._loop.age_seconds <= settings.DISPATCHER.worker_silent_seconds

    def livez(self) -> tuple[int, dict[str, Any]]:
        live = self.is_live()
        body = {
            "status": "alive" if live else "stuck",
            "loop_seconds": round(self._loop.age_seconds, 1),
            "silent_seconds": settings.DISPATCHER.worker_silent_seconds,
        }
        return (200 if live else 503), body

    def readyz(self) -> tuple[int, dict[str, Any]]:
        if self._draining():
            return 503, {"status": "draining", "checks": {}}
        fleets = self._any_of()
        answers = self._probes.run({**self._needs, **fleets})
        errors = {name: _error_of(answer) for name, answer in answers.items()}
        ready = self.is_live() and not any(errors[name] for name in self._needs)
        ready = ready and (not fleets or any(not errors[name] for name in fleets))
        whole = ready and not any(errors.values())
        checks = {
            name: {"ok": not error, **({"error": error} if error else {})} for name, error in errors.items()
        }
        status = "ready" if whole else "degraded" if ready else "not ready"
        return (200 if ready else 503), {"status": status, "checks": checks}


class HealthPort:
    """Serves `health` at ``[HOST:]PORT`` (empty: nowhere) from its own threads, and reports liveness to the
    service manager. It retries while the previous process still holds the port."""

    def __init__(self, health: Health, address: str) -> None:
        self._health = health
        self._address = split_address(address) if address else None
        self._stopped = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    def start(self, *, watchdog: bool = True) -> None:
        """Start the threads. watchdog: False for a process whose loop notifies the service manager itself."""
        if watchdog:
            threading.Thread(target=self._notify_while_live, name="watchdog", daemon=True).start()
        if self._address is not None:
            threading.Thread(target=self._serve, name="health-port", daemon=True).start()

    def stop(self) -> None:
        """Release the port for the next process of this worker."""
        self._stopped.set()
        server = self._server
        if server is not None:
            threading.Thread(target=server.shutdown, daemon=True).start()  # it blocks

    def _notify_while_live(self) -> None:
        while not self._stopped.wait(TICK_SECONDS):
            if self._health.is_live():
                notify(ALIVE)

    def _serve(self) -> None:
        assert self._address is not None
        is_logged = False
        while not self._stopped.is_set():
            try:
                server = self._server = _Server(self._address, _handler(self._health))
            except OSError as error:
                if not is_logged:
                    log.warning("health_port_taken", address=self._address, error=str(error))
                is_logged = True
                self._stopped.wait(_BIND_AGAIN_SECONDS)
                continue
            with server:
                log.info("health_port", address=self._address)
                if not self._stopped.is_set():
                    server.serve_forever(poll_interval=0.1)
            return


class Fleets:
    """Checks of the database and of the Redis of each fleet. Without the database the fleets last read are
    used."""

    def __init__(self, leases: Callable[[str], Any]) -> None:
        self._leases = leases
        self._known = ["main"]

    def database(self) -> str:
        """Check the database and read the fleets; for `Health.needs`."""
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            self._known = queries.fleets()
        finally:
            connection.close()  # the thread ends
        return ""

    def redis(self) -> Mapping[str, Question]:
        """Return a check for each fleet; for `Health.any_of`."""
        return {f"redis {fleet}": partial(self._index, fleet) for fleet in self._known}

    def _index(self, fleet: str) -> str:
        try:
            whole = self._leases(fleet).generation()
        except LayoutNotInUse:
            return ""  # another version serves this fleet: no fault of this process
        return "" if whole is not None else "the index is being rebuilt"


def broker_answers() -> str:
    """Check the broker; for `Health.needs` of beat, which only publishes."""
    with app.connection_for_write(connect_timeout=1.0) as broker:
        broker.transport_options = dict(app.conf.hint_transport_options)
        broker.ensure_connection(max_retries=1)
    return ""


def _error_of(answer: Any) -> str:
    if isinstance(answer, Exception):
        return "does not answer" if isinstance(answer, TimeoutError) else type(answer).__name__
    return str(answer)


class _Server(ThreadingHTTPServer):
    """HTTP server for probes. Over `_MAX_CONNECTIONS` the oldest connections are closed: a probe takes
    milliseconds."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, *args: Any) -> None:
        self._connections = Connections(_MAX_CONNECTIONS)
        super().__init__(*args)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # otherwise the loop would spin
                self._connections.end_oldest()
                time.sleep(_NO_DESCRIPTOR_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), daemon=True
        )
        self._connections.admit(request, thread)
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        self._connections.forget(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are logged at debug level only."""
        log.debug("probe_failed", exc_info=True)


def _handler(health: Health) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS

        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.rfile = io.BufferedReader(TimedReader(self.connection))

        routes = {"/livez": health.livez, "/readyz": health.readyz}

        def do_GET(self) -> None:
            route = self.routes.get(self.path.partition("?")[0])
            status, body = route() if route else (404, {"status": "no such route"})
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Probes are not logged."""

    return Handler
