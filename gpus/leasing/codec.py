"""Converts values of `gpus.protocol` to script arguments, and script answers to values.

Names of arguments and fields are declared in the heads of `lua/*.lua`, for Python's call and Lua's reading
alike (docs/adr/0044-named-keys-and-script-arguments.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foundation import json_text
from gpus.leasing.readings import clean_reading
from gpus.leasing.values import (
    SUMMARY_SECONDS,
    Circuit,
    ExpiredLease,
    Follower,
    Heartbeat,
    Measured,
    PoolDepth,
    Pushed,
    PushResult,
    SlotView,
    SpareSlots,
    Spread,
    StartsIn,
    Summary,
    Tokens,
    Wakes,
)
from gpus.protocol import BANDS, CircuitState, Lease, LeaseRef, PushOutcome, TenantSpec, Ticket

OUTCOMES = {
    1: PushOutcome.LEASED,
    2: PushOutcome.QUEUED,
    3: PushOutcome.DUPLICATE,
    4: PushOutcome.HELD,
}
Answer = Any
"""A script's answer: None, an int, a text, or lists of these."""
MAX_WARM = 8
"""Warm models sent per claim; more are cut off, to bound the work of a claim."""
CLAIM_AGAIN = "again"
"""Answer of `lua/claim.lua` if one call is not enough to find the next ticket."""
Value = str | int | float | None
Row = Mapping[str, Value]
Argument = Value | Sequence[str] | Row | Sequence[Row]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "texts": (list, tuple),
    "record": (dict,),
    "records": (list, tuple),
}
SCALARS = frozenset({"text", "number"})


def check_names(*names: str) -> None:
    """Raise ValueError for a name that cannot be part of a key or a list."""
    for name in names:
        if not name or ":" in name or "," in name:
            raise ValueError(f"a name must not be empty or contain a colon or comma, it is {name!r}")


def check_tickets(pool: str, tickets: Sequence[Ticket]) -> None:
    """Raise ValueError for a bad name or priority."""
    check_names(pool, *{ticket.model for ticket in tickets}, *{ticket.tenant for ticket in tickets})
    for ticket in tickets:
        if not 1 <= ticket.priority <= 9:
            raise ValueError(
                f"a priority is a number from 1 to 9, that of {ticket.job_id} is {ticket.priority}"
            )


def tenant_args(tenant: TenantSpec) -> dict[str, Value]:
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "band": BANDS.index(tenant.highest_band),
        "most_running": tenant.max_running,
    }


def warm_arg(warm: Sequence[str] | None) -> str | None:
    """The warm models as `,a,b,`; None (unknown) differs from no warm model (`,`)."""
    if warm is None:
        return None
    check_names(*warm)
    return "".join((",", *(f"{model}," for model in warm[:MAX_WARM])))


def ref_args(ref: LeaseRef) -> dict[str, Value]:
    return {"slot": ref.slot, "job": ref.job_id, "attempt": ref.attempt_id, "epoch": ref.epoch}


def lease_args(lease: Lease) -> dict[str, Value]:
    return {
        "pool": lease.pool,
        "slot": lease.slot,
        "job": lease.job_id,
        "attempt": lease.attempt_id,
        "epoch": lease.epoch,
        "model": lease.model,
        "tenant": lease.tenant,
        "priority": lease.priority,
        "fence": lease.fence,
        "leased_us": lease.leased_at_ms * 1000,
        "estimate": lease.estimate_seconds,
    }


def ticket_args(ticket: Ticket) -> dict[str, Value]:
    """The fields that identify a waiting ticket."""
    return {"job": ticket.job_id, "model": ticket.model, "tenant": ticket.tenant, "priority": ticket.priority}


def pushed_args(ticket: Ticket) -> dict[str, Value]:
    return {
        **ticket_args(ticket),
        "place_us": ticket.place_us,
        "avoid": ticket.avoid_server or None,
        "near": ticket.near_server or None,
    }


def read_lease(answer: list[Any] | None) -> Lease | None:
    if answer is None:
        return None
    pool, slot, job, attempt, epoch, model, tenant, priority, fence, leased_us, estimate, adopted = answer
    return Lease(
        pool=pool,
        slot=slot,
        job_id=job,
        attempt_id=attempt,
        epoch=int(epoch),
        model=model,
        tenant=tenant,
        priority=int(priority),
        fence=int(fence),
        leased_at_ms=int(leased_us) // 1000,
        estimate_seconds=float(estimate),
        adopted=bool(adopted),
    )


def read_expired(answer: Sequence[Any]) -> ExpiredLease:
    pool, slot, job, attempt, epoch, model, tenant, is_ending, worker, held, *follower = answer
    return ExpiredLease(
        pool=pool,
        ref=LeaseRef(slot, job, attempt, int(epoch)),
        model=model,
        tenant=tenant,
        is_ending=bool(is_ending),
        worker=worker,
        held_seconds=float(held),
        follower=_read_follower(*follower),
    )


def _read_follower(attempt: str, job: str, model: str) -> Follower | None:
    return Follower(job, attempt, model) if attempt else None


def read_wakes(flat: Sequence[Any]) -> tuple[Wakes, ...]:
    return tuple(Wakes(pool, host or None, int(count)) for pool, host, count in _chunks(flat, 3))


def read_pushed(answer: Sequence[Any]) -> Pushed:
    results, wakes, failing = answer
    return Pushed(
        tuple(
            PushResult(OUTCOMES[outcome], int(position), _read_start(p50_us, p90_us, seen))
            for outcome, position, p50_us, p90_us, seen in _chunks(results, 5)
        ),
        read_wakes(wakes),
        frozenset(failing),
    )


def _read_start(p50_us: int, p90_us: int, seen: int) -> StartsIn | None:
    return None if p50_us < 0 else StartsIn(round(p50_us / 1e6, 3), round(p90_us / 1e6, 3), seen)


def read_spare(answer: Sequence[Any]) -> SpareSlots:
    counts, most, failing = answer
    return SpareSlots([int(count) for count in counts], None if most < 0 else int(most), frozenset(failing))


def read_tokens(answer: Sequence[Any]) -> Tokens:
    taken, left, wait_us, full_us = (int(value) for value in answer)
    return Tokens(bool(taken), left, wait_us / 1_000_000, full_us / 1_000_000)


def read_slot(answer: Sequence[Any]) -> SlotView:
    slot, pool, state, resting, warm, job, attempt, epoch, model, held, expires, circuit, follower = answer
    return SlotView(
        slot=slot,
        pool=pool,
        state=state,
        resting=bool(resting),
        warm_model=warm or None,
        job_id=job or None,
        attempt_id=attempt or None,
        epoch=int(epoch),
        model=model or None,
        held_seconds=float(held),
        expires_in_seconds=float(expires) if expires else None,
        circuit=CircuitState(circuit or "closed"),
        follower_id=follower or None,
    )


def read_circuits(flat: Sequence[Any]) -> dict[str, Circuit]:
    return {
        name: Circuit(CircuitState(state), int(strikes), int(opens), float(left))
        for name, state, strikes, opens, left in _chunks(flat, 5)
    }


def read_depth(pool: str, answer: Sequence[Sequence[Any]]) -> PoolDepth:
    counts, parked, pending, states, circuits, placed = answer
    return PoolDepth(
        pool=pool,
        waiting=_read_counts(counts),
        wakes_pending=sum(_read_counts(pending).values()),
        slots=_read_counts(states),
        parked=_read_counts(parked),
        circuits={model: CircuitState(state) for model, state in _chunks(circuits, 2)},
        placed=_read_counts(placed),
    )


def _read_counts(flat: Sequence[Any]) -> dict[str, int]:
    return {name: int(count) for name, count in _chunks(flat, 2) if int(count)}


def _chunks(flat: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (flat[first : first + size] for first in range(0, len(flat), size))


def read_heartbeats(servers: Sequence[str], answer: list[str]) -> dict[str, Heartbeat]:
    """answer: µs and JSON per server, in order; both empty without a heartbeat."""
    pairs = zip(servers, answer[::2], answer[1::2], strict=True)
    return {server: Heartbeat(float(us) / 1_000_000, json.loads(said)) for server, us, said in pairs if us}


def read_telemetry(answer: list[str]) -> list[Measured]:
    """answer: µs and JSON, alternating."""
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return [Measured(float(us) / 1_000_000, _reading(measured)) for us, measured in pairs]


def _reading(text: str) -> dict[str, Any]:
    """An older version stored readings that were not bounded."""
    try:
        return clean_reading(json_text.read(str.encode(text, "utf-8", "surrogatepass")))
    except json_text.NotReadable:
        return {}


def read_summaries(answer: Sequence[str], within_seconds: float) -> list[Summary]:
    """answer: of `lua/summaries.lua`. within_seconds: maximum age of a summary's end."""
    now, found = float(answer[0]) / 1_000_000, []
    for text in answer[1:]:
        number, readings, measures, _, loads = json.loads(text)
        age = now - number * SUMMARY_SECONDS
        if age - SUMMARY_SECONDS >= within_seconds:
            break
        spreads = {
            name: Spread(total / count, lowest, highest)
            for name, (count, total, lowest, highest) in sorted(measures.items())
        }
        found.append(Summary(age, readings, spreads, dict(sorted(loads.items()))))
    return found


class BadCall(TypeError):
    """The arguments of a call differ from those in the script's head."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument or field. kind: text, number, texts, record or records; record: the fields of the last
    two."""

    kind: str
    is_optional: bool
    record: Record | None = None

    def accepts(self, value: object) -> bool:
        if value is None:
            return self.is_optional
        return isinstance(value, _TYPES[self.kind]) and not isinstance(value, bool)

    def lua(self, place: str) -> str:
        """The Lua expression that converts the argument at `place`."""
        if self.kind == "number":
            # `tonumber` would parse it twice
            return f"{place} ~= '' and {place} + 0 or nil" if self.is_optional else f"{place} + 0"
        return f"{place} ~= '' and {place} or nil" if self.is_optional else place


class Record:
    """Named values: the arguments of a script, or the fields of one record. owner: for error messages."""

    def __init__(self, owner: str, parameters: Mapping[str, Parameter]) -> None:
        self.owner, self.parameters = owner, parameters
        self._scalars = [name for name, one in parameters.items() if one.kind in SCALARS]
        self._list = next((name for name, one in parameters.items() if one.kind not in SCALARS), None)
        self._known: dict[tuple[type, ...], bool] = {}
        """Cache by types of checked values: whether one of them is None."""

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """The values in the order in which Lua reads them, "" for None. Raises BadCall."""
        if len(given) != len(self.parameters) or not all(map(given.__contains__, self.parameters)):
            missing = [f"{name} is missing" for name in self.parameters if name not in given]
            unknown = [f"no argument is named {name}" for name in given if name not in self.parameters]
            raise BadCall(f"{self.owner}: {', '.join(missing + unknown)}")
        values = [given[name] for name in self._scalars]
        types = tuple(map(type, values))
        has_none = self._known.get(types)
        if has_none is None:
            for name, value in zip(self._scalars, values, strict=True):
                self._check(name, value)
            has_none = self._known[types] = None in values
        if has_none:
            values = ["" if value is None else value for value in values]
        if self._list is not None:
            values += self._rows(self._list, given[self._list])
        return values

    def _rows(self, name: str, rows: Any) -> list[Any]:
        self._check(name, rows)
        record = self.parameters[name].record
        if record is None:
            if not all(isinstance(text, str) for text in rows):
                raise BadCall(f"{self.owner}: {name} must contain texts only")
            return list(rows)
        if isinstance(rows, dict):
            return record.values(rows)
        return [value for row in rows or () for value in record.values(row)]

    def _check(self, name: str, value: object) -> None:
        if not self.parameters[name].accepts(value):
            raise BadCall(f"{self.owner}: {name} must be {self.parameters[name].kind}, it is {value!r}")

    def lua(self, first: int) -> str:
        """Lua code that reads the values from ``ARGV[first]`` on into locals, ``args_pool`` for
        ``args.pool``."""
        lines = [
            f"local args_{name} = {self.parameters[name].lua(f'ARGV[{first + at}]')}\n"
            for at, name in enumerate(self._scalars)
        ]
        if self._list is not None:
            begin, record = first + len(self._scalars), self.parameters[self._list].record
            kind, size = self.parameters[self._list].kind, len(record.parameters) if record else 1
            row = "ARGV[i]" if record is None else record._lua_row()
            if kind == "record":
                lines.append(f"local args_{self._list}\n")
                lines.append(f"if ARGV[{begin}] then local i = {begin} args_{self._list} = {row} end\n")
            else:
                lines.append(f"local args_{self._list} = {{}}\n")
                add = f"args_{self._list}[#args_{self._list} + 1] = {row}"
                lines.append(f"for i = {begin}, #ARGV, {size} do {add} end\n")
        return "".join(lines)

    def _lua_row(self) -> str:
        place = "ARGV[i + {}]".format
        fields = enumerate(self.parameters.items())
        return f"{{ {', '.join([f'{name} = {one.lua(place(at))}' for at, (name, one) in fields])} }}"
