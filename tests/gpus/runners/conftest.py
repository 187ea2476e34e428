from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gpus.runners.connections import Pool
from gpus.runners.transport import HttpTransport
from tests.support.servers.raw_server import RawServer, Script


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Connections of this test alone."""
    pool = Pool()
    yield pool
    pool.clear()


@pytest.fixture
def transport(pool: Pool) -> HttpTransport:
    return HttpTransport(pool)


@pytest.fixture
def serve() -> Iterator[Callable[..., RawServer]]:
    """``serve(script)`` starts a raw server; it ends with the test."""
    with ExitStack() as stack:

        def start(script: Script, **options: object) -> RawServer:
            return stack.enter_context(RawServer(script, **options))  # type: ignore[arg-type]

        yield start
