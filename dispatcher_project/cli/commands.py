"""The commands of `gpu-dispatcher`, in the groups that its `--help` shows. Without Django.

Each is a command of manage.py under the same name with hyphens (exceptions: `foundation/program.py`), or a
part that `python -m` starts in a checkout: web, beat, flower.
"""

from __future__ import annotations

from dataclasses import dataclass

from foundation.program import shown_name


@dataclass(frozen=True, slots=True)
class Entry:
    """name: manage.py's. summary: one line, an imperative sentence."""

    name: str
    summary: str

    @property
    def shown(self) -> str:
        return shown_name(self.name)


GROUPS: dict[str, tuple[Entry, ...]] = {
    "Start": (
        Entry("up", "Start the whole dispatcher on this machine; Ctrl-C stops it"),
        Entry("web", "Serve the API, the event streams and the admin"),
        Entry("gpu_worker", "Run jobs on GPU servers, or on this machine's own GPU"),
        Entry("queue_worker", "Run the sweeps and deliver callbacks"),
        Entry("beat", "Start the sweeps on schedule; one process per installation"),
        Entry("flower", "Serve Flower, the view of the Celery workers"),
        Entry("gpu_node", "Serve Python functions as a GPU server"),
    ),
    "Jobs": (
        Entry("submit", "Submit a job"),
        Entry("jobs", "List jobs, the newest first"),
        Entry("job", "Show a job: state, attempts, events, why it waits"),
        Entry("rerun", "Run a job again, as it was or with changes"),
        Entry("cancel", "Cancel jobs, by id or by a filter"),
        Entry("dlq", "List dead letters; retry or dismiss them"),
        Entry("artifacts", "List, put, get or remove files that jobs refer to"),
    ),
    "Workflows": (
        Entry("workflow", "Store, check, compare, draw, convert or start workflows"),
        Entry("runs", "List runs of workflows, the newest first"),
        Entry("run", "Show a run; cancel, pause, resume or restart it"),
        Entry("answer", "Answer a run's question, or list what waits for a person"),
        Entry("signal", "Send a signal to the runs that wait for it"),
        Entry("schedule", "List, store, preview, trigger, backfill or pause schedules"),
    ),
    "Fleet": (
        Entry("register", "Register a model server and try each of its models"),
        Entry("servers", "List servers: state, slots, health, models, what is wrong"),
        Entry("top", "Show servers, queues and the latest failures, live"),
        Entry("workers", "List the dispatcher's processes"),
        Entry("on", "Give servers work again"),
        Entry("drain", "Let servers finish what they run, and give them nothing new"),
        Entry("off", "Stop what servers run, and give them nothing new"),
        Entry("pause", "Stop starting jobs of a model, a tenant or everything"),
        Entry("resume", "End a pause"),
        Entry("quarantine", "List slots whose GPU may still be busy"),
        Entry("free", "Declare quarantined slots free"),
        Entry("circuits", "List circuit breakers; close one"),
    ),
    "Access": (
        Entry("tenants", "List tenants: limits, running and waiting jobs, GPU-seconds today"),
        Entry("usage", "Show what tenants used, by day, model or tag"),
        Entry("create_key", "Create an API key, and its tenant if there is none yet"),
        Entry("keys", "List, rotate or revoke API keys"),
        Entry("upload_url", "Show or renew the address to which a Cog container uploads its files"),
        Entry("webhook_secret", "Show or renew the secret that signs a tenant's callbacks"),
        Entry("unlock", "Allow sign-ins to the admin again after failures"),
        Entry("createsuperuser", "Create an administrator's login for the admin"),
        Entry("changepassword", "Change the password of a login for the admin"),
    ),
    "Upkeep": (
        Entry("doctor", "Check every part and say what to do"),
        Entry("check_url", "Try an installation from outside: TLS, key, event stream, a job"),
        Entry("backup", "Write the database and the secrets into one file"),
        Entry("restore", "Put a backup in place of the database and the secrets"),
        Entry("migrate", "Create or upgrade the tables of the database"),
        Entry("index", "Show or switch the key layout of the index in Redis"),
        Entry("gpu_check", "Check a GPU of this machine"),
    ),
    "Evidence": (
        Entry("bench", "Measure speed and cost, beside other job queues"),
        Entry("prove", "Break a dispatcher under load and check that no job is lost"),
        Entry("simulate", "Play the protocol in virtual time with faults at every step"),
    ),
}
"""Heading: its commands. `completion`, `--help` and `--version` are `gpu-dispatcher`'s own."""

COMPLETION = "completion"
COMPLETION_SUMMARY = "Print the completion script for bash, zsh or fish"

ENTRIES: dict[str, Entry] = {entry.name: entry for group in GROUPS.values() for entry in group}
"""By manage.py's name."""

CHECKOUT_ONLY = frozenset({"test", "supply", "write_docs", "prove_upgrade", "makemigrations"})
"""Commands that work on the source code: manage.py has them, a wheel does not."""


def entry_of(word: str) -> Entry | None:
    """The entry for a word of the command line: the shown name or manage.py's."""
    return _BY_WORD.get(word)


_BY_WORD = {name: entry for entry in ENTRIES.values() for name in (entry.shown, entry.name)}
