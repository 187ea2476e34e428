"""Faults of the store of artifacts, beside crashes at any of its calls (`kill_in_a_step`)."""

from __future__ import annotations

from verification.simulation.operators import Operators


class ArtifactFaults(Operators):
    """Without files in the world they do nothing."""

    def store_down(self) -> None:
        """The store of artifacts does not answer for a while."""
        self._world.active_faults.store_down = True
        self._sleep(0.5, 15.0)
        self._world.active_faults.store_down = False

    def store_replies_lost(self) -> None:
        """Lose three in ten replies of the store for a while; the calls take effect."""
        self._world.active_faults.store_reply_lost = 0.3
        self._sleep(2.0, 20.0)
        self._world.active_faults.store_reply_lost = 0.0

    def store_cut(self) -> None:
        """Cut half of the gets and puts off in the middle, for a while."""
        self._world.active_faults.store_cut = 0.5
        self._sleep(2.0, 15.0)
        self._world.active_faults.store_cut = 0.0

    def store_heads_lie(self) -> None:
        """Half of the questions for an object say that there is none, for a while, though a list has it."""
        self._world.active_faults.store_head_lies = 0.5
        self._sleep(0.5, 8.0)
        self._world.active_faults.store_head_lies = 0.0
