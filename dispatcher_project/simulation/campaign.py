"""Many seeds, over as many processes as there are cores, each with a Valkey and a database of its own."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher_project.simulation.size import Size

if TYPE_CHECKING:  # a child process comes here before its Django is set up
    from dispatcher_project.simulation.run import Verdict

_client: Any = None


def verdicts(seeds: Iterable[int], size: Size, *, processes: int) -> Iterator[Verdict]:
    """In the order of the seeds. Raises RuntimeError where no Valkey is found."""
    if processes == 1:
        _prepare()
        for seed in seeds:
            yield _one(size, seed)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare_child) as pool:
        yield from pool.map(partial(_one, size), seeds)


def _one(size: Size, seed: int) -> Verdict:
    from dispatcher_project.simulation.run import simulate

    return simulate(seed, _client, size)


def _prepare_child() -> None:
    from dispatcher_project.embedded import die_with_parent

    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    import django

    django.setup()
    _prepare()


def _prepare() -> None:
    global _client
    if _client is not None:
        return
    from dispatcher_project.embedded import EmbeddedValkey
    from dispatcher_project.heap import collect_seldom
    from dispatcher_project.simulation.redis_link import connect

    folder = tempfile.TemporaryDirectory(prefix=f"simulate-{os.getpid()}-")
    valkey = EmbeddedValkey(Path(folder.name), append_only=False)
    valkey.start()
    atexit.register(folder.cleanup)
    atexit.register(valkey.stop)
    _client = connect(valkey.url)
    collect_seldom()
