"""The cell for every state of a slot and its server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpus.leasing.values import Heartbeat, SlotView
from gpus.models import Pause, Pool, QuarantinedSlot, Server
from gpus.reports import CellState, Fleet, cell_of, read_fleet
from tests.support.factories import make_model, make_server
from tests.support.fleet_views import Seen, view

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def server(desired: str = "on", slots: int = 2, **values: Any) -> Server:
    return Server(name="s", pool=Pool(name="flux"), slots=slots, desired=desired, **values)


@pytest.mark.parametrize(
    ("seen", "machine", "state", "reason"),
    [
        (view(), server(), CellState.FREE, ""),
        (view(resting=True), server(), CellState.RESTING, "its server answered that it is busy"),
        (view(), server(healthy=False, last_error="HTTP 500"), CellState.SICK, "HTTP 500"),
        (view(), server(healthy=False), CellState.SICK, "does not answer"),
        (view(state="leased"), server(), CellState.BUSY, ""),
        (view(state="leased"), server(healthy=False), CellState.BUSY, ""),
        (view(state="adoptable"), server(), CellState.BUSY, "waits for a worker to continue it"),
        (view(state="settling"), server(), CellState.BUSY, "its end is being written"),
        (
            view(state="leased"),
            server("draining"),
            CellState.DRAINING,
            "last job before the drain is complete",
        ),
        (view(state="leased"), server("off"), CellState.DRAINING, "is being interrupted"),
        (view("s/2", "leased"), server(), CellState.DRAINING, "last job before the slot is removed"),
        (view(state="off"), server("draining"), CellState.OFF, "drained"),
        (view(state="off"), server("off"), CellState.OFF, "switched off"),
        (view(state="off"), server(), CellState.OFF, "a job above the slot count still runs"),
        (
            view(state="off"),
            server(host="box.1", healthy=False, last_error="Its worker is gone."),
            CellState.SICK,
            "Its worker is gone.",
        ),
        (view(state="off"), server("off", host="box.1", healthy=False), CellState.OFF, "switched off"),
        (view(), server("draining"), CellState.FREE, "not draining yet"),
        (view(state="quarantined"), server(), CellState.QUARANTINED, "not proven free"),
        (None, server(), CellState.UNKNOWN, "not in Redis"),
    ],
)
def test_a_cell_has_a_state_and_a_reason(
    seen: SlotView | None, machine: Server, state: CellState, reason: str
) -> None:
    cell = cell_of(seen.slot if seen else "s/0", seen, None, machine, NOW)
    assert (cell.state, cell.reason) == (state, reason)
    is_held = state in (CellState.BUSY, CellState.DRAINING)
    assert (cell.job_id, cell.model, cell.age_seconds) == (("j", "flux", 7.0) if is_held else (None,) * 3)
    assert cell.warm_models == (("flux",) if seen else ())


def test_an_idle_slot_of_a_paused_system_has_that_reason() -> None:
    assert (
        cell_of("s/0", view(state="off"), None, server(), NOW, is_paused=True).reason
        == "the system is paused"
    )


@pytest.mark.parametrize("seen", [view(state="quarantined"), view(), None])
def test_an_open_quarantine_counts_whatever_redis_says(seen: SlotView | None) -> None:
    suspect = QuarantinedSlot(
        server_id="s",
        slot=0,
        reason="server_lost",
        job_id="j9",
        model="flux",
        since=NOW - timedelta(seconds=90),
    )
    cell = cell_of("s/0", seen, suspect, server(), NOW)
    assert (cell.state, cell.reason, cell.job_id) == (CellState.QUARANTINED, "server lost", "j9")
    assert cell.age_seconds == 90.0


def look(**fleets: Seen) -> Fleet:
    servers = Server.objects.select_related("pool").prefetch_related("placements").order_by("name")
    return read_fleet(list(servers), lambda fleet: fleets[fleet], NOW)  # type: ignore[arg-type,return-value]


@pytest.mark.django_db
def test_a_row_shows_desired_and_actual_state() -> None:
    model = make_model("flux", fleet="main")
    make_server("a", model=model, slots=2)
    make_server("b", model=model, slots=1, desired="draining")
    make_server("c", model=model, slots=1, desired="draining")
    views = [view("a/1"), view("a/0", "leased"), view("b/0", "leased"), view("c/0", "off")]
    rows = {row.name: row for row in look(main=Seen(*views)).rows}
    assert [cell.slot for cell in rows["a"].cells] == ["a/0", "a/1"]
    assert [(row.observed, row.is_settled, row.running) for row in rows.values()] == [
        ("on", True, 1),
        ("draining", False, 1),
        ("off", True, 0),
    ]
    assert rows["a"].models == ("flux",)
    assert (rows["a"].count(CellState.FREE), rows["a"].one_less) == (1, 1)


@pytest.mark.django_db
def test_a_run_above_the_count_is_shown_until_it_ends() -> None:
    make_server("a", model=make_model("flux"), slots=1)
    row = look(main=Seen(view("a/0", "off"), view("a/1", "leased"), view("a/2", "off"))).rows[0]
    assert [(cell.index, cell.state) for cell in row.cells] == [(0, CellState.OFF), (1, CellState.DRAINING)]


@pytest.mark.django_db
def test_one_fleet_without_redis_leaves_the_others_as_they_are() -> None:
    make_server("a", model=make_model("flux", fleet="main"), slots=1)
    make_server("b", model=make_model("zimg", fleet="far"), slots=2)
    fleet = look(main=Seen(view("a/0")), far=Seen(away=True))
    a, b = fleet.rows
    assert fleet.away == ("far",)
    assert (a.observed, b.observed) == ("on", "unknown")
    assert [cell.state for cell in b.cells] == [CellState.UNKNOWN] * 2
    assert not b.is_settled


class Said(Seen):
    """beats: by server, age and loaded models."""

    def __init__(self, *views: SlotView, beats: dict[str, tuple[float, list[str]]]) -> None:
        super().__init__(*views)
        self._beats = beats

    def heartbeats(self, servers: Sequence[str]) -> dict[str, Heartbeat]:
        found = {name: self._beats[name] for name in servers if name in self._beats}
        return {name: Heartbeat(age, {"telemetry": {"warm": warm}}) for name, (age, warm) in found.items()}


@pytest.mark.django_db
def test_warm_models_are_those_that_a_pinned_worker_reports() -> None:
    """Not the last model, which may have been unloaded, or whose process may have died."""
    model, names = make_model("flux"), ("http", "holds", "empty", "gone", "unheard")
    for name in names:
        make_server(name, model=model, slots=1, host=None if name == "http" else f"{name}.1")
    beats = {"holds": (1.0, ["flux", "zimg"]), "empty": (1.0, []), "gone": (16.0, ["flux"])}
    fleet = look(main=Said(*(view(f"{name}/0") for name in names), beats=beats))
    assert {row.name: row.cells[0].warm_models for row in fleet.rows} == {
        "http": ("flux",),
        "holds": ("flux", "zimg"),
        "empty": (),
        "gone": (),
        "unheard": (),
    }


@pytest.mark.django_db
def test_a_pause_of_the_system_is_no_disobedience() -> None:
    make_server("a", model=make_model("flux"), slots=1)
    Pause.objects.create(kind=Pause.Kind.SYSTEM, since=NOW, actor="user:x")
    row = look(main=Seen(view("a/0", "off"))).rows[0]
    assert (row.observed, row.is_settled) == ("off", True)
    assert row.cells[0].reason == "the system is paused"


@pytest.mark.django_db
def test_a_hundred_servers_cost_a_question_per_fleet_and_two_queries(django_assert_num_queries: Any) -> None:
    model = make_model("flux")
    for number in range(100):
        make_server(f"s{number}", model=model)
    servers = list(Server.objects.select_related("pool").prefetch_related("placements"))
    layer = Seen()
    with django_assert_num_queries(2):
        read_fleet(servers, lambda fleet: layer, NOW)  # type: ignore[arg-type,return-value]
    assert layer.asked == 1
