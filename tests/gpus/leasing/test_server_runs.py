"""A server that was started anew, or one that took over: its index is not trusted until it is made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher_project.embedded import EmbeddedValkey
from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import connect
from gpus.protocol import Ticket

from .rig import POOL, Rig


def test_a_restarted_server_is_noticed_and_its_old_index_not_trusted(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as server:
        rig = Rig(connect(server.url), "main").open()
        rig.server()
        rig.push("j1")
        server.kill()
        with pytest.raises(LeasingUnavailable, match="does not answer"):
            rig.claim()
        server.stop()
        server.start()
        with pytest.raises(LeasingUnavailable, match="no generation"):
            rig.claim()
        assert rig.leases.generation() is None
        assert not rig.leases.check()
        assert "generation" in rig.all_keys()  # it came back with the file, and names another run
        rig.open()
        assert rig.leases.check()
        assert rig.claim() is None


def test_scripts_that_the_server_forgot_are_loaded_again(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, append_only=False) as server:
        client = connect(server.url)
        rig = Rig(client, "main").open()
        rig.server()
        rig.push("j1")
        client.script_flush()
        assert rig.must_claim().job_id == "j1"


def test_a_marker_of_another_run_is_not_trusted(rig: Rig) -> None:
    rig.client.hset(rig.prefix + "generation", "run_id", "another")
    with pytest.raises(LeasingUnavailable, match="no generation"):
        rig.leases.push(POOL, [Ticket("j", "flux", "t", 5, 1)])
