"""Plays many seeds on all cores, in processes with a Valkey and a database of their own."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dispatcher_project.celery_transport.gc_tuning import collect_seldom
from dispatcher_project.supervisor.embedded import EmbeddedValkey, die_with_parent
from verification.simulation.redis_link import connect
from verification.simulation.run import Verdict, simulate
from verification.simulation.size import Size
from verification.simulation.world import make_template

_client: Any = None
"""Of this process' own Valkey."""


def verdicts(seeds: Iterable[int], size: Size, *, processes: int) -> Iterator[Verdict]:
    """Yield the verdicts in the order of the seeds. Raises RuntimeError if no Valkey is found."""
    with ExitStack() as stack:
        urls = [stack.enter_context(_valkey()).url for _ in range(processes)]
        make_template()
        collect_seldom()
        if processes == 1:
            client = connect(urls[0])
            for seed in seeds:
                yield simulate(seed, client, size)
            return
        # forked: Django, the tables and the registry of every seed are set up already
        context = multiprocessing.get_context("fork")
        theirs = context.SimpleQueue()
        for url in urls:
            theirs.put(url)
        pool = ProcessPoolExecutor(processes, context, _begin_child, (theirs,))
        yield from stack.enter_context(pool).map(partial(_one, size), seeds)


@contextmanager
def _valkey() -> Iterator[EmbeddedValkey]:
    with (
        tempfile.TemporaryDirectory(prefix="simulate-") as folder,
        EmbeddedValkey(Path(folder), append_only=False) as valkey,
    ):
        yield valkey


def _begin_child(urls: Any) -> None:
    global _client
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    _client = connect(urls.get())


def _one(size: Size, seed: int) -> Verdict:
    try:
        return simulate(seed, _client, size)
    except Exception as error:
        error.add_note(f"Raised in seed {seed}.")
        raise
