"""Every scenario ends with `assert_laws`; the laws themselves are verification/laws.py."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.ports import Ports
from verification.laws import check_laws

__all__ = ["assert_laws", "check_laws"]

_SHOWN = 20


def assert_laws(
    *, drained: bool, ports: Ports, accepted: int | None = None, peak_running: Mapping[str, int] | None = None
) -> None:
    broken = check_laws(drained=drained, ports=ports, accepted=accepted, peak_running=peak_running)
    more = f"\n… and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    assert not broken, "laws broken:\n" + "\n".join(broken[:_SHOWN]) + more
