"""A lease layer whose answers are lost."""

from __future__ import annotations

from gpus.errors import LeasingUnavailable


class LossyLeases:
    """The first call of `name` takes place, and its reply is lost."""

    def __init__(self, leases, name):
        self._leases, self._name, self.lost = leases, name, 0

    def __getattr__(self, name):
        method = getattr(self._leases, name)
        if name != self._name or self.lost:
            return method

        def lossy(*a, **k):
            method(*a, **k)
            self.lost += 1
            raise LeasingUnavailable("Redis does not answer: timeout")

        return lossy
