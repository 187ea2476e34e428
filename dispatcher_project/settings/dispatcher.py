"""Our own knobs: one frozen value, read from `DISPATCHER_*` variables, checked at start."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from ipaddress import ip_network
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """Every field can be set as ``DISPATCHER_<FIELD>`` in the environment. Units are in the names."""

    lease_seconds: float = 15.0
    """How long a lease lasts that its worker does not renew. A dead worker is noticed after that."""
    renew_seconds: float = 5.0
    """How often a worker renews its leases; less than half of `lease_seconds`."""
    sweep_seconds: float = 2.0
    """How often the sweeps run that look for expired leases and for free slots with waiting jobs."""
    hand_back_seconds: float = 1.0
    """A worker thread goes on with the next job this long before it hands back to Celery; with shorter jobs
    20 times as long while other threads are free."""
    claim_ahead_seconds: float = 1.0
    """Behind a run that is expected to take less than this, its slot's next job is claimed while it runs.
    0: never."""
    deploy_grace_seconds: float = 60.0
    """How long a stopping worker lets sync runs finish."""
    worker_silent_seconds: float = 60.0
    """A worker, or beat, whose main loop did not turn for so long is stuck: `/livez` of its health port says
    503, and systemd restarts it."""
    health_port: str = ""
    """``[HOST:]PORT`` where a worker, or beat, answers `/livez` and `/readyz`; empty: nowhere. Without HOST
    only this machine reaches it. `--health-port` of a worker goes before it."""
    worker_threads: int = 64
    """Of a GPU worker: how many runs it has in hand at once."""
    max_payload_bytes: int = 1_000_000
    """Of a job's payload; a longer one gets 413."""
    max_batch_bytes: int = 4 * 1024 * 1024
    """Of the body of a batch, whose jobs are stored in one transaction; a longer one gets 413."""
    schema_bytes: int = 64 * 1024
    """Of a model's `payload_schema`, as JSON."""
    schema_depth: int = 64
    """Its levels, also through its references."""
    schema_values: int = 5000
    """Its members of all levels, each counted again wherever a reference leads to it."""
    schema_check_seconds: float = 2.0
    """How long the checks of one request against schemas may take, where they may take long."""
    schema_checks: int = 2
    """Such long checks at once in a web process; each has a process of its own."""
    schema_check_bytes: int = 512 * 1024 * 1024
    """Of memory that such a process may map, its interpreter with it."""
    max_batch_jobs: int = 1000
    """Jobs of one `POST /queue/submit-batch`."""
    max_wait_seconds: float = 60.0
    """The longest `Prefer: wait=n` and `?wait=n`."""
    answer_seconds: float = 25.0
    """After so long a client of `/queue` is told 503, whatever its request waits for. Longer than the 20 s of
    SQLite: it is the last resort, because nobody knows then what becomes of the request."""
    upload_idle_seconds: float = 10.0
    """A client that sends nothing of its request's body for so long is told 408."""
    upload_seconds: float = 120.0
    """So is one whose body is not whole by then: 32 MB at 2 Mbit/s."""
    refused_body_bytes: int = 64 * 1024 * 1024
    """Of a body that is refused unread so much is read and dropped, so that its client gets to read why; of a
    longer one the connection is reset."""
    retry_base_seconds: float = 1.0
    """The pause before a job's second try; it doubles with each further one."""
    retry_cap_seconds: float = 30.0
    """The longest pause between two tries."""
    retry_jitter: float = 0.1
    """The share of a pause that is random."""
    free_connect_tries: int = 3
    """Refused connections that cost a job no try."""
    free_attempts: int = 100
    """Attempts of a job that cost no try (busy, refused, interrupted) and are followed by the next one at
    once; after so many it pauses like after a try that counts, up to `retry_cap_seconds`. 0: never."""
    poison_deaths: int = 3
    """Workers that may die while they run a job; then it is a dead letter."""
    same_failures: int = 3
    """Equal failures of a job in a row (run_failed, server_error, timeout) that make it a dead letter.
    0: only its retries count."""
    max_queued_seconds: float = 86_400.0
    """How long a job may wait in all before it fails, where neither its model nor its tenant says. 0: for
    ever."""
    tenant_max_queued: int = 1_000_000
    """How many jobs of a tenant may wait, where its own `max_queued` does not say; counted every two seconds.
    0: any."""
    min_run_seconds: float = 1.0
    """The shortest `max_run_seconds` that a job may set, where its model does not say. 0: any."""
    circuit_failures: int = 5
    """Failures in a row, of different jobs, that open the circuit of a server or model; 0: none opens."""
    circuit_rest_seconds: float = 10.0
    """How long an open circuit rests the first time; twice as long each time it opens again."""
    circuit_rest_cap_seconds: float = 600.0
    """The longest rest of an open circuit."""
    probe_seconds: float = 2.0
    """How often quarantined slots and unhealthy servers are probed."""
    lock_sync_seconds: float = 30.0
    """How often GPU servers are asked what they run, which is compared with the attempts in the database."""
    reconcile_seconds: float = 30.0
    """How often waiting jobs in the database are compared with tickets in Redis."""
    process_silent_seconds: float = 15.0
    """A process that did not say for so long that it lives is gone, for a switch of the index's layout."""
    connect_timeout_seconds: float = 5.0
    """For a connection to a GPU server."""
    health_timeout_seconds: float = 3.0
    """For the answer of a GPU server's health endpoint."""
    register_probe_seconds: float = 1.0
    """How long a registration waits for the server's health, which its warnings are made from."""
    clock_tolerance_seconds: float = 5.0
    """How far apart the clocks of Redis, database and host may be. While they are further, nothing is done
    that can't be taken back: no deadline passes, retention removes nothing."""
    retention_days: float = 30.0
    """How long jobs that are over are kept; dead letters that nobody dismissed three times as long."""
    callback_networks: tuple[str, ...] = ()
    """Private ranges that callbacks may go to, as CIDR; public addresses always may."""
    callback_refused_origins: tuple[str, ...] = ()
    """``HOST:PORT`` where no callback goes, besides GPU servers and the services that settings name."""
    callback_timeout_seconds: float = 15.0
    """For one try of a callback."""
    callbacks_in_flight: int = 1000
    """Callbacks that one callbacks worker sends at once; each takes a socket and no thread."""
    callbacks_in_flight_per_tenant: int = 500
    """Of one tenant; and no more than are free, so that several tenants can't fill all of them."""
    callbacks_in_flight_per_receiver: int = 16
    """Of one tenant to one host and port."""
    callback_bytes_in_flight: int = 64_000_000
    """Bodies in memory; a tenant may hold as many bytes as are free, and one message in any case."""
    callback_circuit_failures: int = 3
    """Tries without an answer that open a receiver's circuit: one try at a time then; 0: none opens."""
    callback_circuit_rest_seconds: float = 5.0
    """The pause between two tries of an open circuit the first time; twice as long after each that fails."""
    callback_circuit_rest_cap_seconds: float = 60.0
    """The longest pause between two tries of an open circuit."""
    callback_lookups: int = 16
    """Names of receivers that are looked up at once; each is a thread as long as the resolver takes."""
    callback_lookup_seconds: float = 5.0
    """After so long without an answer of the resolver a try counts as failed."""
    streams_per_reader: int = 256
    """The most event streams of one key or user that a web process serves at once."""
    max_push_bytes: int = 32 * 1024 * 1024
    """The longest result that a GPU server may push; its model's `max_response_bytes` where that is less."""
    pushes_per_attempt: int = 100
    """Pushes that are read for one attempt; further ones are refused with 429."""
    push_bytes_per_attempt: int = 64 * 1024 * 1024
    """Bytes of them all together."""
    model_user: str = ""
    """On a GPU box: the user that a pinned worker started by root runs models as; `--model-user` goes before
    it. Empty: the worker's own."""
    model_environment: tuple[str, ...] = ()
    """Environment variables of the worker that its models see beside the usual ones (`HF_TOKEN`)."""
    model_open_files: int = 65_536
    """Of a model process; and no more than the worker may open itself. 0: as many as that."""
    model_processes: int = 0
    """Processes and threads of the models' user in all. 0: the system's limit."""
    model_file_bytes: int = 0
    """The longest file that a model process writes. 0: any."""
    model_memory_mb: int = 0
    """Address space of a model process, MiB, for `--gpu none`: CUDA maps more than it uses. 0: any."""
    news_seconds: float = 0.5
    """The shortest pause between two events with a run's progress or partial output."""
    web_connections: int = 4096
    """The most connections of a web process. Fewer where it may not open as many files (`ulimit -n`)."""
    web_connections_per_address: int = 512
    """Of one address, or of one /64 network; not of the proxies that FORWARDED_ALLOW_IPS names."""
    web_head_seconds: float = 10.0
    """A client whose request's head has not come by then is told 408."""
    web_idle_seconds: float = 5.0
    """An answered connection without a next request is closed. Proxies must close theirs sooner."""
    web_read_seconds: float = 30.0
    """A connection whose client took less than 32 KiB of what waits for it in that time is closed."""
    web_unsent_bytes: int = 128 * 1024 * 1024
    """Of answers that their clients have not taken yet, in all; those that wait longest go first."""
    web_body_bytes: int = 96 * 1024 * 1024
    """Of request bodies in memory that are still arriving, in all; those that take longest go first."""
    web_head_bytes: int = 64 * 1024
    """Of a request's head; of a longer one the client is told 431, or 414 inside its URL."""
    web_url_bytes: int = 16 * 1024
    """The longest URL of a request; a longer one gets 414."""
    web_cookie_bytes: int = 8 * 1024
    """The longest Cookie header; a request with a longer one gets 431."""
    web_headers: int = 100
    """The most header fields of a request; more get 431."""
    web_threads_per_tenant: int = 8
    """Of the 16 in which a web process answers; a tenant's other requests wait. As all `…_per_tenant` here:
    of an address, where no valid key names a tenant."""
    web_heavy_at_once: int = 0
    """Heavy requests that a web process answers at once: bodies over 64 KiB, batches over 8 KiB, and lists.
    The others wait, and tenants take turns. 0: one."""
    web_requests_per_tenant: int = 1000
    """Requests that are being read, wait or are answered in a web process; more are told 429."""
    web_body_bytes_per_tenant: int = 64 * 1024 * 1024
    """Of the bodies of these requests, also of what is in files; more is told 429."""
    web_waits_per_tenant: int = 500
    """Requests that wait for a job's end (`?wait=`, `Prefer: wait`) in a web process."""
    public_url: str = "http://127.0.0.1:8000"
    """Where GPU servers reach this dispatcher with a pushed result."""
    flower_url: str = "http://127.0.0.1:5555"
    """Where the web finds Flower, whose pages it passes on to staff."""
    sign_in_failures: int = 5
    """Failed sign-ins of one account from one address after which more are refused."""
    sign_in_failures_per_address: int = 50
    """Of all accounts from one address."""
    sign_in_lock_seconds: float = 900.0
    """How long they are refused after the last one that failed."""
    passwords_at_once: int = 2
    """Passwords that a web process hashes at once; each takes a core for about half a second."""
    passwords_waiting: int = 4
    """Sign-ins that wait for that; more are refused. Each holds one of the web's threads."""
    session_seconds: float = 43_200.0
    """How long a sign-in to the admin lasts at most."""
    session_idle_seconds: float = 7_200.0
    """How long without a click; pages that refresh themselves do not count."""
    hsts_seconds: int = 31_536_000
    """How long browsers keep to https after a visit; sent where `public_url` is https. 0: not at all."""
    admin_path: str = "admin"
    """Where the admin's pages are, without slashes around it."""
    admin_hosts: tuple[str, ...] = ()
    """Names under which the admin answers; elsewhere it is a 404. Empty: under all."""
    metrics_token: str = ""
    """What `/metrics` wants as ``Authorization: Bearer …``. Empty: it answers 401 to everybody; ``open``: it
    asks for none, and names no tenant."""
    secret_key: str = ""
    """Derives the keys for stored secrets and push tokens; falls back to Django's SECRET_KEY."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ImproperlyConfigured(f"DISPATCHER_{field.name.upper()} must be finite, it is {value}")
            if isinstance(value, (int, float)) and value < 0:
                raise ImproperlyConfigured(
                    f"DISPATCHER_{field.name.upper()} must not be negative, it is {value}"
                )
        if self.renew_seconds * 2 >= self.lease_seconds:
            raise ImproperlyConfigured(
                "DISPATCHER_RENEW_SECONDS must be less than half of DISPATCHER_LEASE_SECONDS"
            )
        if self.circuit_rest_cap_seconds < self.circuit_rest_seconds:
            raise ImproperlyConfigured(
                "DISPATCHER_CIRCUIT_REST_CAP_SECONDS must not be less than DISPATCHER_CIRCUIT_REST_SECONDS"
            )
        if self.health_port:
            try:
                split_address(self.health_port)
            except ValueError as error:
                raise ImproperlyConfigured(f"DISPATCHER_HEALTH_PORT: {error}") from None
        if self.callback_circuit_rest_cap_seconds < self.callback_circuit_rest_seconds:
            raise ImproperlyConfigured(
                "DISPATCHER_CALLBACK_CIRCUIT_REST_CAP_SECONDS must not be less than "
                "DISPATCHER_CALLBACK_CIRCUIT_REST_SECONDS"
            )
        if self.max_queued_seconds > MOST_QUEUED_SECONDS:
            raise ImproperlyConfigured(
                f"DISPATCHER_MAX_QUEUED_SECONDS is at most {MOST_QUEUED_SECONDS:g} (a year), "
                f"it is {self.max_queued_seconds:g}; 0: for ever"
            )
        for name in ("web_head_seconds", "web_read_seconds"):
            if not getattr(self, name):
                raise ImproperlyConfigured(f"DISPATCHER_{name.upper()} must be more than 0")
        if not self.worker_silent_seconds:
            raise ImproperlyConfigured("DISPATCHER_WORKER_SILENT_SECONDS must be more than 0")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ImproperlyConfigured(f"DISPATCHER_{name.upper()} must be at least 1")
        if not _ADMIN_PATH.fullmatch(self.admin_path) or self.admin_path.split("/")[0] in _TAKEN:
            raise ImproperlyConfigured(
                "DISPATCHER_ADMIN_PATH must be letters, digits, - and _ (/ between them), and not begin with "
                f"{', '.join(_TAKEN)}; it is {self.admin_path!r}"
            )
        token = self.metrics_token
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ImproperlyConfigured("DISPATCHER_METRICS_TOKEN must be printable ASCII without spaces")
        for network in self.callback_networks:
            try:
                ip_network(network.strip(), strict=False)
            except ValueError as error:
                raise ImproperlyConfigured(f"DISPATCHER_CALLBACK_NETWORKS: {error}") from None
        for origin in self.callback_refused_origins:
            try:
                split_address(origin.strip())
            except ValueError as error:
                raise ImproperlyConfigured(f"DISPATCHER_CALLBACK_REFUSED_ORIGINS: {error}") from None


MOST_QUEUED_SECONDS = 31_536_000.0
"""As for models and tenants: deadlines stay dates."""
_ADMIN_PATH = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_TAKEN = ("api", "livez", "metrics", "readyz", "static")
_AT_LEAST_ONE = (
    "web_threads_per_tenant",
    "web_requests_per_tenant",
    "web_body_bytes_per_tenant",
    "web_waits_per_tenant",
    "schema_checks",
    "schema_check_bytes",
    "worker_threads",
    "callbacks_in_flight",
    "callbacks_in_flight_per_tenant",
    "callbacks_in_flight_per_receiver",
    "callback_bytes_in_flight",
    "callback_lookups",
    "streams_per_reader",
    "web_connections",
    "web_connections_per_address",
    "web_unsent_bytes",
    "web_body_bytes",
    "web_head_bytes",
    "web_url_bytes",
    "web_cookie_bytes",
    "web_headers",
    "max_push_bytes",
    "pushes_per_attempt",
    "push_bytes_per_attempt",
    "sign_in_failures",
    "sign_in_failures_per_address",
    "sign_in_lock_seconds",
    "passwords_at_once",
    "session_seconds",
    "session_idle_seconds",
)


def read_settings(env: environ.Env) -> DispatcherSettings:
    """From the environment; what is not set keeps its default. Raises ImproperlyConfigured."""
    found: dict[str, Any] = {}
    for field in fields(DispatcherSettings):
        name = f"DISPATCHER_{field.name.upper()}"
        if name not in env.ENVIRON:
            continue
        try:
            if isinstance(field.default, tuple):
                found[field.name] = tuple(env.list(name))
            elif isinstance(field.default, float):
                found[field.name] = float(env.str(name))  # env.float would read "1x" as 1
            elif isinstance(field.default, int):
                found[field.name] = int(env.str(name))
            else:
                found[field.name] = env.str(name)
        except ValueError:
            kind = "number" if isinstance(field.default, float) else "whole number"
            raise ImproperlyConfigured(f"{name} must be a {kind}, it is {env.str(name)!r}") from None
    return DispatcherSettings(**found)


def split_address(address: str) -> tuple[str, int]:
    """``8001`` (loopback) or ``0.0.0.0:8001``. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not [HOST:]PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
