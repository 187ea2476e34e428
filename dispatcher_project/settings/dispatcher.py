"""The dispatcher's own settings: one frozen object, read from `DISPATCHER_*` variables and checked at
start."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from ipaddress import ip_network
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

from artifacts.store.place import read_place


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """All settings. The variable ``DISPATCHER_<FIELD>`` sets a field. Units are in the names."""

    lease_seconds: float = 15.0
    """How long a lease lasts without renewal. A dead worker is detected after that time."""
    renew_seconds: float = 5.0
    """How often a worker renews its leases; less than half of `lease_seconds`."""
    sweep_seconds: float = 2.0
    """How often the sweeps for expired leases and for free slots with waiting jobs run."""
    hand_back_seconds: float = 1.0
    """How long a worker thread takes one job after the other before it returns to Celery; with shorter jobs
    20 times as long while other threads are free."""
    claim_ahead_seconds: float = 1.0
    """If a run is expected to be shorter than this, its slot's next job is claimed while it runs (prefetch).
    0: never."""
    deploy_grace_seconds: float = 60.0
    """How long a stopping worker lets sync runs finish."""
    worker_silent_seconds: float = 60.0
    """If the main loop of a worker or of beat has not turned for this time, the process is stuck: `/livez` of
    its health port answers 503, and systemd restarts it."""
    health_port: str = ""
    """``[HOST:]PORT`` where a worker or beat answers `/livez` and `/readyz`; empty: nowhere. Without HOST
    only this machine reaches it. A worker's `--health-port` overrides it."""
    worker_threads: int = 64
    """Runs at once in a GPU worker."""
    max_payload_bytes: int = 1_000_000
    """Largest payload of a job; a larger one gets 413."""
    max_batch_bytes: int = 4 * 1024 * 1024
    """Largest body of a batch, whose jobs are stored in one transaction; a larger one gets 413."""
    workflow_bytes: int = 256 * 1024
    """Largest definition of a workflow, as canonical JSON."""
    workflow_definitions: int = 1_000
    """Most workflows of a tenant."""
    workflow_versions: int = 5_000
    """Most versions of all workflows of a tenant; they are kept, since runs refer to them."""
    workflow_inline_versions: int = 1_000
    """Most definitions of a tenant's inline runs; each is kept as long as one of its runs."""
    workflow_nodes: int = 1_000
    """Most nodes in a definition."""
    workflow_text_characters: int = 1_000
    """Most characters of the description of a workflow, and of the title of a question."""
    workflow_expression_characters: int = 1_000
    """Longest expression in a definition: a `$ref` or a `when`."""
    workflow_expression_parts: int = 100
    """Most parts of an expression: names, indices, comparisons and function calls."""
    workflow_expression_depth: int = 30
    """Deepest nesting of the parts of an expression, at most 100."""
    workflow_map_items: int = 100_000
    """Most items of a map."""
    workflow_max_parallel: int = 10_000
    """Largest `max_parallel` of a map."""
    workflow_choices: int = 10_000
    """Most choices of a question; with more its node fails with `too_many_choices`."""
    workflow_answer_keys: int = 100
    """Most API keys that a question names in `answer_by`."""
    workflow_wait_seconds: float = 31_622_400.0
    """Longest `expires_seconds` of a question or signal, and wait of a timer; at most 100 years."""
    workflow_cache_seconds: float = 31_622_400.0
    """Longest `ttl_seconds` of a cached result."""
    workflow_line_bytes: int = 64 * 1024
    """Longest line of an artifact of JSON lines that is the list of a map; the map fails with `bad_line`."""
    workflow_input_bytes: int = 256 * 1024
    """Largest inputs of a run, as JSON."""
    workflow_value_bytes: int = 16 * 1024 * 1024
    """Largest value that the references of a node resolve to, and output of a run, as JSON; the node or run
    fails with `value_too_large`. A larger output of a map is an artifact."""
    workflow_search_steps: int = 10_000_000
    """Most steps of the references of a node. A step is one visit of a part of an expression, weighted by its
    kind, or as much work of a function; 10 million take half a second of CPU time, at most one. Plain paths
    such as `a.b[0]` cost none."""
    workflow_runs: int = 10_000
    """Most unfinished runs of a tenant; a further one gets 429."""
    workflow_sub_runs: int = 1_000
    """Most unfinished sub-runs of a tenant, of all levels. A map waits for the ends of its children; another
    node that would start a further one fails."""
    workflow_contained: int = 200
    """Most workflows that a definition may contain, on all levels; they are read when it is stored."""
    workflow_step_failures: int = 10
    """If the step that advances a run raises an error that no rule foresees so many times in a row, and for
    `workflow_step_failure_seconds`, the run fails with `step_failed`. Errors of the database, of Redis and of
    the artifact store do not count."""
    workflow_step_failure_seconds: float = 600.0
    """The least time between the first and the last of these failures. Longer than a rolling upgrade: an old
    process may fail at a step that a new one can do."""
    workflow_depth: int = 8
    """Deepest nesting of sub-workflows, at most 8."""
    workflow_waits: int = 10_000
    """Most open waits of a tenant's runs: for people, signals and times. A map waits for the ends of its
    children; another node that would begin a further one fails."""
    workflow_question_bytes: int = 256 * 1024
    """Largest choices, form and default of a human node, schema of a signal, and time of a timer, as JSON; a
    larger one fails its node (`question_too_large`)."""
    workflow_answer_bytes: int = 256 * 1024
    """Largest answer to a human node, and body of a signal, as JSON; a larger one gets 413."""
    workflow_signal_bytes: int = 16 * 1024 * 1024
    """Most bytes of all copies of a signal's body: each node that takes it has one, in which each artifact
    counts 400 bytes more. A larger signal gets 413."""
    workflow_signal_keys: int = 100_000
    """Most signals and answers with an Idempotency-Key of a tenant that are kept; a further one gets 429."""
    workflow_signal_key_seconds: float = 86_400.0
    """How long the Idempotency-Key of a signal or answer is kept."""
    schedules: int = 10_000
    """Most schedules of a tenant."""
    schedule_min_seconds: float = 10.0
    """Shortest `every_seconds` of a schedule."""
    schedule_grace_seconds: float = 30.0
    """How late a due time of a schedule may be handled and still be on time; later ones are caught up, or
    missed."""
    schedule_catch_up_seconds: float = 7 * 86_400.0
    """Longest `catch_up_seconds` of a schedule."""
    schedule_backfill: int = 1_000
    """Most due times of one backfill."""
    schedule_backfills: int = 10_000
    """Most due times of a tenant's backfills that wait."""
    schedule_waiting: int = 100
    """Most firings of a schedule that wait for earlier ones (`queue_all`); further ones are skipped."""
    usage_days: int = 400
    """Days for which the usage of tenants is kept."""
    usage_tags: int = 200
    """Tags of a tenant and day whose usage is kept apart; further ones are summed up together."""
    schema_bytes: int = 64 * 1024
    """Largest `payload_schema` of a model, as JSON."""
    schema_depth: int = 64
    """Most levels of a `payload_schema`, also through references."""
    schema_values: int = 5000
    """Most members of a `payload_schema` on all levels; each counts again wherever a reference leads to
    it."""
    schema_file_steps: int = 20_000
    """Most schemas within a `payload_schema` or `result_schema` that marks files, which are all searched for
    places of files; each counts again wherever a reference leads to it."""
    schema_check_seconds: float = 2.0
    """Time limit for the long schema checks of one request."""
    schema_checks: int = 2
    """Long schema checks at once in a web process; each runs in a process of its own."""
    schema_check_bytes: int = 512 * 1024 * 1024
    """Memory that the process of a long schema check may map, with its interpreter."""
    max_batch_jobs: int = 1000
    """Most jobs of one `POST /queue/submit-batch`."""
    max_wait_seconds: float = 60.0
    """The longest `Prefer: wait=n` and `?wait=n`."""
    answer_seconds: float = 25.0
    """Response deadline: a request under `/queue` without an answer by then gets 503. Longer than SQLite's
    lock time-out of 20 s, because after the 503 the request may still take effect."""
    upload_idle_seconds: float = 10.0
    """A client that sends no part of its request's body for this time gets 408."""
    upload_seconds: float = 120.0
    """A request's body that is not complete after this time gets 408: 32 MB at 2 Mbit/s."""
    refused_body_bytes: int = 64 * 1024 * 1024
    """Bytes of a refused body that are read and dropped, so that the client reads the answer; with a longer
    body the connection is reset."""
    retry_base_seconds: float = 1.0
    """The pause before a job's first retry; it doubles with each further one."""
    retry_cap_seconds: float = 30.0
    """The longest pause before a retry."""
    retry_jitter: float = 0.1
    """The random share of a pause."""
    free_connect_tries: int = 3
    """Refused connections of a job that do not count as retries."""
    free_attempts: int = 100
    """Attempts of a job that do not count as retries (busy, refused, interrupted) and are followed by the
    next one at once; after this number it pauses as before a retry, up to `retry_cap_seconds`. 0: never."""
    poison_deaths: int = 3
    """Workers that may die while they run a job; then it becomes a dead letter."""
    same_failures: int = 3
    """Equal failures of a job in a row (run_failed, server_error, timeout) that make it a dead letter.
    0: only its retries count."""
    max_queued_seconds: float = 86_400.0
    """How long a job may wait in all before it fails, if neither its model nor its tenant sets a limit. 0: no
    limit."""
    tenant_max_queued: int = 1_000_000
    """How many jobs of a tenant may wait, if the tenant has no `max_queued`; counted every two seconds.
    0: no limit."""
    min_run_seconds: float = 1.0
    """The shortest `max_run_seconds` that a job may set, if its model has no limit. 0: no limit."""
    circuit_failures: int = 5
    """Failures in a row, of different jobs, that open the circuit of a server or model; 0: never."""
    circuit_rest_seconds: float = 10.0
    """How long a circuit stays open the first time; twice as long each time it opens again."""
    circuit_rest_cap_seconds: float = 600.0
    """The longest time that a circuit stays open."""
    probe_seconds: float = 2.0
    """How often quarantined slots and unhealthy servers are probed."""
    lock_sync_seconds: float = 30.0
    """How often the runs that GPU servers report are compared with the attempts in the database."""
    reconcile_seconds: float = 30.0
    """How often waiting jobs in the database are compared with tickets in Redis."""
    process_silent_seconds: float = 15.0
    """A process without a heartbeat for this time counts as gone when the index's layout is switched."""
    connect_timeout_seconds: float = 5.0
    """Time-out for a connection to a GPU server."""
    health_timeout_seconds: float = 3.0
    """Time-out for the answer of a GPU server's health endpoint."""
    register_probe_seconds: float = 1.0
    """How long a registration waits for the server's health check, which its warnings come from."""
    clock_tolerance_seconds: float = 5.0
    """How far apart the clocks of Redis, database and host may be. Beyond it irreversible actions are
    suspended: no deadline passes, retention deletes nothing."""
    retention_days: float = 30.0
    """How long ended jobs are kept; dead letters that are not dismissed three times as long."""
    telemetry_hours: float = 24.0
    """How long Redis keeps the telemetry of a GPU in summaries of five minutes, about 90 KB for a day; at
    most 168 (a week). 0: only the last hour, reading by reading. A pinned worker's setting counts."""
    callback_networks: tuple[str, ...] = ()
    """Private networks that callbacks may go to, as CIDR; public addresses are always allowed."""
    callback_refused_origins: tuple[str, ...] = ()
    """``HOST:PORT`` that callbacks may not go to, besides GPU servers and the services in the settings."""
    callback_timeout_seconds: float = 15.0
    """Time-out for one try of a callback."""
    callbacks_in_flight: int = 1000
    """Callbacks that one callbacks worker sends at once; each takes a socket and no thread."""
    callbacks_in_flight_per_tenant: int = 500
    """Callbacks of one tenant at once; also no more than are free, so that several tenants can't take all."""
    callbacks_in_flight_per_receiver: int = 16
    """Callbacks of one tenant to one host and port at once."""
    callback_bytes_in_flight: int = 64_000_000
    """Bytes of callback bodies in memory; a tenant may use all free bytes, and one message in any case."""
    callback_circuit_failures: int = 3
    """Tries without an answer that open a receiver's circuit, which then gets one try at a time; 0: never."""
    callback_circuit_rest_seconds: float = 5.0
    """The pause between two tries of an open circuit the first time; twice as long after each that fails."""
    callback_circuit_rest_cap_seconds: float = 60.0
    """The longest pause between two tries of an open circuit."""
    callback_lookups: int = 16
    """DNS lookups of receivers at once; each takes a thread until the resolver answers."""
    callback_lookup_seconds: float = 5.0
    """Time-out for a DNS lookup; after it the try counts as failed."""
    streams_per_reader: int = 256
    """The most event streams of one key or user that a web process serves at once."""
    max_push_bytes: int = 32 * 1024 * 1024
    """The largest result that a GPU server may push, or its model's `max_response_bytes` if that is less."""
    pushes_per_attempt: int = 100
    """Pushes read for one attempt; then one in ten seconds is, and the others get 429."""
    push_bytes_per_attempt: int = 64 * 1024 * 1024
    """Bytes of all pushes for one attempt; then one push in ten seconds is read."""
    model_user: str = ""
    """On a GPU machine: the user that a pinned worker started by root runs models as; `--model-user`
    overrides it. Empty: the worker's own."""
    model_environment: tuple[str, ...] = ()
    """Environment variables of the worker that its models also get (`HF_TOKEN`)."""
    model_open_files: int = 65_536
    """Open files of a model process, at most the worker's own limit. 0: that limit."""
    model_processes: int = 0
    """Processes and threads of the models' user in all. 0: the system's limit."""
    model_file_bytes: int = 0
    """The largest file that a model process may write. 0: no limit."""
    model_memory_mb: int = 0
    """Address space of a model process in MiB, for `--gpu none`: CUDA maps more than it uses. 0: no limit."""
    news_seconds: float = 0.5
    """The shortest pause between two events with a run's progress, partial output or log lines."""
    log_chars_per_job: int = 256 * 1024
    """Characters of log lines in the events of a job's first attempt; the nth gets 1/n of it. A longer log
    keeps its beginning and, as a quarter, its last lines. 0: no log lines are stored."""
    log_line_chars: int = 2000
    """Characters of a log line; the rest of a longer one is left out."""
    log_lines_per_second: float = 50.0
    """Log lines of one run, and ten times as many in one go; further ones are counted and left out."""
    log_chars_per_second: int = 128 * 1024
    """Characters of log lines of all runs of a worker, and four times as many in one go."""
    tenant_logs: str = "log"
    """Log lines that tenants read of their jobs. `log`: those of `ctx.log`; `all`: also standard output,
    standard error and tracebacks, which may name paths and addresses; `none`."""
    tenant_errors: str = "class"
    """What tenants read of a failure of model code (`run_failed`). `class`: the exception's class; `message`:
    the first line of its message, 500 characters without paths, URLs and addresses; `code`: a fixed text."""
    web_connections: int = 4096
    """Most connections of a web process; fewer if the limit of open files (`ulimit -n`) is lower."""
    web_connections_per_address: int = 512
    """Most connections of one address, or of one IPv6 /64 network; not of the proxies in
    FORWARDED_ALLOW_IPS."""
    web_head_seconds: float = 10.0
    """A client whose request's head is not complete after this time gets 408."""
    web_idle_seconds: float = 5.0
    """An idle connection is closed this long after its last answer. Proxies must close theirs sooner."""
    web_read_seconds: float = 30.0
    """A connection is closed if its client reads less than 32 KiB of a waiting answer in this time."""
    web_unsent_bytes: int = 128 * 1024 * 1024
    """Bytes of all answers that clients have not read yet; beyond it the connections that wait longest are
    closed."""
    web_body_bytes: int = 96 * 1024 * 1024
    """Memory for all request bodies that are still arriving; beyond it the oldest uploads are ended."""
    web_head_bytes: int = 64 * 1024
    """Largest head of a request; a larger one gets 431, or 414 if the URL alone is too long."""
    web_url_bytes: int = 16 * 1024
    """The longest URL of a request; a longer one gets 414."""
    web_cookie_bytes: int = 8 * 1024
    """The longest Cookie header; a request with a longer one gets 431."""
    web_headers: int = 100
    """The most header fields of a request; more get 431."""
    web_threads_per_tenant: int = 8
    """Limit of a tenant's concurrent threads in a web process, which has 16; further requests wait. This and
    all `…_per_tenant` below count per address for requests without a valid key."""
    web_heavy_at_once: int = 0
    """Heavy requests that a web process answers at once: bodies over 64 KiB, batches over 8 KiB, and lists.
    The others wait, and tenants take turns. 0: one."""
    web_requests_per_tenant: int = 1000
    """Requests of one tenant in a web process that are read, wait or are answered; more get 429."""
    web_body_bytes_per_tenant: int = 64 * 1024 * 1024
    """Bytes of the bodies of these requests, in memory and in files; more get 429."""
    web_waits_per_tenant: int = 500
    """Requests of one tenant in a web process that wait for a job's end (`?wait=`, `Prefer: wait`)."""
    artifact_store: str = ""
    """Where artifacts are: a folder, or ``s3://BUCKET/PREFIX?endpoint=URL``
    (docs/reference/artifacts.md). Empty: the folder `artifacts` in the data folder."""
    artifact_url: str = ""
    """URL under which clients and GPU servers reach the web process for the bytes of artifacts in a folder: a
    host of its own separates them from the admin. Empty: `public_url`."""
    artifact_url_seconds: float = 3600.0
    """How long a signed URL of an artifact is valid; at most a week."""
    artifact_days: float = 7.0
    """Days for which an artifact is kept that no job uses."""
    artifact_promise_seconds: float = 86_400.0
    """How long a promised artifact may take to be uploaded, also in parts."""
    artifact_reserve_bytes: int = 1024 * 1024 * 1024
    """Room on the disk of a folder with artifacts that no upload may take."""
    artifact_transfers: int = 64
    """Uploads and downloads of artifacts in a folder that a web process serves at once; more get 503."""
    artifact_transfers_per_tenant: int = 16
    """The same of one tenant's artifacts; more get 429."""
    artifact_bytes_per_second: int = 16 * 1024
    """A slower transfer, on average after its first minute, is ended."""
    artifact_completions: int = 2
    """Uploads in parts that a web process joins and checks at once; more get 503."""
    artifact_part_bytes: int = 64 * 1024 * 1024
    """Size of each part of an upload in parts; S3 takes 5 MiB to 5 GiB. A longer output is written to S3 in
    parts. An upload that would need more than 10,000 parts gets larger ones. After a change of this setting,
    an unfinished upload to S3 starts again at its first part; an unfinished upload to a folder keeps its part
    size."""
    cog_upload_share: float = 0.5
    """Share of the free bytes of the web process's temporary folder (`TMPDIR`) that all uploads by Cog
    containers may use together; further uploads get 507."""
    max_artifact_bytes: int = 5 * 1024 * 1024 * 1024
    """Largest artifact; a larger one gets 413. S3 takes up to 5 GiB in one piece."""
    max_artifact_refs: int = 1000
    """Most references to artifacts in one payload."""
    max_form_bytes: int = 32 * 1024 * 1024
    """Largest submit as a form with files; a larger one gets 413. Larger files are uploaded as artifacts."""
    form_files: int = 16
    """Most files of one form; more get 413."""
    submit_file_seconds: float = 3600.0
    """How long a file that came in a submit stays if no job refers to it, because the submit was refused."""
    fetched_urls: int = 0
    """Most https URLs of one request to submit jobs, or of one job of a workflow or schedule, that the
    dispatcher reads itself, at the places that a model's schema marks for files. 0: such a URL stays as it
    is, and the GPU server reads it."""
    fetched_url_bytes: int = 32 * 1024 * 1024
    """Bytes of all files that are read for one request."""
    fetched_url_seconds: float = 30.0
    """How long these files may take to be read, with the wait for a turn."""
    fetched_url_networks: tuple[str, ...] = ()
    """Private networks from which files may be read, as CIDR; public addresses are always allowed."""
    url_fetches: int = 32
    """Files that a web process reads from URLs at once; others wait for their turn."""
    url_fetches_per_tenant: int = 8
    """The same for one tenant."""
    tenant_artifact_bytes: int = 100 * 1024 * 1024 * 1024
    """Bytes of a tenant's artifacts, with those whose upload is promised and with outputs of its runs that
    are no artifacts (yet); more get 429, or end a run as `output_refused`. 0: no limit."""
    tenant_run_outputs: int = 20_000
    """Outputs of a tenant's runs, saved within 25 hours, that are no artifacts: of runs that go on, have
    failed, or did not name them in their result. More get 429, or end their run as `output_refused`."""
    tenant_promised_artifacts: int = 1000
    """Artifacts of a tenant whose upload is promised and not complete; more get 429."""
    inline_result_bytes: int = 256 * 1024
    """A result with more bytes of JSON becomes an artifact, unless its model sets another limit
    (`inline_result_bytes`). 0: none does."""
    run_artifacts: int = 500
    """Artifacts that one run may save."""
    run_artifact_bytes: int = 20 * 1024 * 1024 * 1024
    """Bytes of the artifacts that one run may save."""
    answer_file_bytes: int = 2 * 1024 * 1024 * 1024
    """Bytes of long texts in one answer of a GPU server, which a worker keeps in a file of its temporary
    folder (`TMPDIR`) until they are stored. Of models with `output_files` or a `result_schema`."""
    output_fetch_seconds: float = 300.0
    """Longest time for reading all files that one result names by URL. The run keeps its slot meanwhile."""
    artifact_save_seconds: float = 60.0
    """How long a run that has ended keeps its slot while the store of artifacts does not take its outputs;
    then the attempt ends as `output_not_stored`."""
    input_cache_bytes: int = 10 * 1024 * 1024 * 1024
    """Bytes of artifacts that model code has read on a pinned worker and that are kept for later runs."""
    input_cache_hours: float = 24.0
    """How long such a file stays that no run uses, also one that was erased meanwhile."""
    public_url: str = "http://127.0.0.1:8000"
    """URL of this dispatcher for GPU servers, which push results to it."""
    flower_url: str = "http://127.0.0.1:5555"
    """URL of Flower for the web process, which passes its pages on to staff."""
    sign_in_failures: int = 5
    """Failed sign-ins of one account from one address after which further ones are refused."""
    sign_in_failures_per_address: int = 50
    """Failed sign-ins of all accounts from one address after which further ones are refused."""
    sign_in_lock_seconds: float = 900.0
    """How long sign-ins are refused after the last failed one."""
    passwords_at_once: int = 2
    """Passwords that a web process hashes at once; each takes a core for about half a second."""
    passwords_waiting: int = 4
    """Sign-ins that wait for a free hash; more are refused. Each holds one of the web's threads."""
    session_seconds: float = 43_200.0
    """The longest session of the admin."""
    session_idle_seconds: float = 7_200.0
    """How long a session lasts without a click; pages that reload themselves do not count."""
    hsts_seconds: int = 31_536_000
    """HSTS: how long browsers use only https after a visit; sent if `public_url` is https. 0: not sent."""
    admin_path: str = "admin"
    """URL path of the admin, without leading and trailing slash."""
    admin_hosts: tuple[str, ...] = ()
    """Host names under which the admin answers; under others it is a 404. Empty: all."""
    metrics_token: str = ""
    """Token that `/metrics` requires as ``Authorization: Bearer …``. Empty: it always answers 401; ``open``:
    no token is required, and tenants are not named."""
    secret_key: str = ""
    """Derives the keys for stored secrets and push tokens; default: Django's SECRET_KEY."""

    def __post_init__(self) -> None:
        for name in ("public_url", "artifact_url"):
            object.__setattr__(self, name, getattr(self, name).rstrip("/"))
        for check in _CHECKS:
            check(self)


MAX_LINE_CHARS = 4096
"""Of `foundation.log_lines`: no line has more."""
TENANT_LOGS = ("log", "all", "none")
TENANT_ERRORS = ("class", "message", "code")
MAX_QUEUED_SECONDS = 31_536_000.0
"""A year, as for models and tenants, so that deadlines are valid dates."""
MAX_TELEMETRY_HOURS = 168.0
MAX_WORKFLOW_DEPTH = 8
"""Of `workflows.models`: the database refuses deeper runs."""
MAX_WORKFLOW_NODES = 1_000
"""Of `workflows.definition.body`: each step of a run reads the states of all its nodes."""
MAX_EXPRESSION_DEPTH = 100
"""Searches recurse, and so do the parser and the checks."""
MAX_WAIT_SECONDS = 36_525 * 86_400.0
"""So that every due time is a valid date."""
_ADMIN_PATH = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_TAKEN = ("api", "livez", "metrics", "readyz", "static", "store")
_ADMIN_RULE = f"must be letters, digits, - and _ (/ between them), and not begin with {', '.join(_TAKEN)}"
_POSITIVE = ("web_head_seconds", "web_read_seconds", "worker_silent_seconds", "artifact_days")
_AT_LEAST_ONE = (
    "web_threads_per_tenant",
    "web_requests_per_tenant",
    "web_body_bytes_per_tenant",
    "web_waits_per_tenant",
    "artifact_url_seconds",
    "artifact_promise_seconds",
    "artifact_transfers",
    "artifact_transfers_per_tenant",
    "artifact_completions",
    "max_artifact_bytes",
    "max_artifact_refs",
    "max_form_bytes",
    "form_files",
    "fetched_url_bytes",
    "url_fetches",
    "url_fetches_per_tenant",
    "tenant_promised_artifacts",
    "tenant_run_outputs",
    "run_artifacts",
    "run_artifact_bytes",
    "answer_file_bytes",
    "schema_file_steps",
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
_RANGES = {
    "max_queued_seconds": (0, MAX_QUEUED_SECONDS, f"is at most {MAX_QUEUED_SECONDS:g} (a year; 0: for ever)"),
    "telemetry_hours": (0, MAX_TELEMETRY_HOURS, f"is at most {MAX_TELEMETRY_HOURS:g} (a week)"),
    "workflow_depth": (1, MAX_WORKFLOW_DEPTH, f"is 1 to {MAX_WORKFLOW_DEPTH}"),
    "workflow_nodes": (0, MAX_WORKFLOW_NODES, f"is at most {MAX_WORKFLOW_NODES}"),
    "workflow_expression_depth": (1, MAX_EXPRESSION_DEPTH, f"is 1 to {MAX_EXPRESSION_DEPTH}"),
    "workflow_wait_seconds": (0, MAX_WAIT_SECONDS, f"is at most {MAX_WAIT_SECONDS:.0f} (100 years)"),
    "artifact_part_bytes": (64 * 1024, 5 * 1024**3, "must be 65536 to 5368709120 (64 KiB to 5 GiB)"),
    "log_line_chars": (20, MAX_LINE_CHARS, f"must be 20 to {MAX_LINE_CHARS}"),
}
"""Lowest and highest value, and the rule in words."""
_RESTS = (
    ("circuit_rest_seconds", "circuit_rest_cap_seconds"),
    ("callback_circuit_rest_seconds", "callback_circuit_rest_cap_seconds"),
)
"""The first rest of a circuit breaker, and its longest."""
_CHOICES = {"tenant_logs": TENANT_LOGS, "tenant_errors": TENANT_ERRORS}


_ADDRESS = re.compile(r"https?://[^/?#@\s]+[^?#\s]*")


def _refusal(name: str, rule: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"DISPATCHER_{name.upper()} {rule}")


def _check_numbers(given: DispatcherSettings) -> None:
    for field in fields(given):
        value = getattr(given, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise _refusal(field.name, f"must be finite, it is {value}")
        if isinstance(value, (int, float)) and value < 0:
            raise _refusal(field.name, f"must not be negative, it is {value}")
    for name in _POSITIVE:
        if not getattr(given, name):
            raise _refusal(name, "must be more than 0")
    for name in _AT_LEAST_ONE:
        if getattr(given, name) < 1:
            raise _refusal(name, "must be at least 1")
    for name, (least, most, rule) in _RANGES.items():
        if not least <= (value := getattr(given, name)) <= most:
            raise _refusal(name, f"{rule}, it is {value:g}")
    if not 0 < given.cog_upload_share <= 1:
        share = given.cog_upload_share
        raise _refusal("cog_upload_share", f"must be more than 0 and at most 1, it is {share:g}")


def _check_times(given: DispatcherSettings) -> None:
    if given.renew_seconds * 2 >= given.lease_seconds:
        raise _refusal("renew_seconds", "must be less than half of DISPATCHER_LEASE_SECONDS")
    for first, longest in _RESTS:
        if getattr(given, longest) < getattr(given, first):
            raise _refusal(longest, f"must not be less than DISPATCHER_{first.upper()}")


def _check_texts(given: DispatcherSettings) -> None:
    path, token = given.admin_path, given.metrics_token
    if not _ADMIN_PATH.fullmatch(path) or path.split("/")[0] in _TAKEN:
        raise _refusal("admin_path", f"{_ADMIN_RULE}; it is {path!r}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise _refusal("metrics_token", "must be printable ASCII without spaces")
    for name in ("public_url", "artifact_url"):
        if (url := getattr(given, name)) and not _ADDRESS.fullmatch(url):
            raise _refusal(name, f"must be http:// or https:// with a host, it is {url!r}")
    for name, choices in _CHOICES.items():
        if (value := getattr(given, name)) not in choices:
            raise _refusal(name, f"must be one of {', '.join(choices)}, it is {value!r}")


def _check_addresses(given: DispatcherSettings) -> None:
    read_place(given.artifact_store)
    parsed: tuple[tuple[str, Iterable[str], Callable[[str], object]], ...] = (
        ("health_port", filter(None, [given.health_port]), split_address),
        ("callback_networks", given.callback_networks, partial(ip_network, strict=False)),
        ("fetched_url_networks", given.fetched_url_networks, partial(ip_network, strict=False)),
        ("callback_refused_origins", given.callback_refused_origins, split_address),
    )
    for name, texts, parse in parsed:
        for text in texts:
            try:
                parse(text.strip())
            except ValueError as error:
                raise ImproperlyConfigured(f"DISPATCHER_{name.upper()}: {error}") from None


_CHECKS = (_check_numbers, _check_times, _check_texts, _check_addresses)


def read_settings(env: environ.Env) -> DispatcherSettings:
    """Read the settings from the environment; others keep their defaults. Raises ImproperlyConfigured."""
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
    """Parse ``8001`` (loopback) or ``0.0.0.0:8001`` into host and port. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not [HOST:]PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
