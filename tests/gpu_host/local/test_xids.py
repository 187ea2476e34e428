"""Xid events of a GPU, and which of them mean that it is faulty."""

from __future__ import annotations

import pytest

from gpu_host.local.nvml import ANY_INSTANCE, Nvml, NvmlError, describe_fatal_xids
from tests.support.fake_nvml import Card, FakeNvml


def test_each_is_counted_from_the_first_reading_on():
    card = Card("GPU-a")
    nvml = Nvml(FakeNvml(card, Card("GPU-b", xids=[(79, 0)])))
    assert nvml.read("GPU-a").xids == {}
    card.xids += [(13, 0), (45, 0), (13, 0)]
    assert nvml.read("GPU-a").xids == {13: 2, 45: 1}
    card.xids += [(13, 0)]
    assert nvml.read("GPU-a").xids == {13: 3, 45: 1}


def test_a_card_without_events_is_still_read():
    library = FakeNvml(Card("GPU-a", tells_xids=False, xids=[(79, 0)]))
    assert Nvml(library).read("GPU-a").xids == {}
    assert library.event_sets == 0


def test_a_mig_instance_counts_its_own_events_and_those_of_the_whole_card():
    parts = [Card("MIG-1", instance=1), Card("MIG-2", instance=2)]
    card = Card("GPU-a", parts=parts)
    nvml = Nvml(FakeNvml(card))
    assert nvml.read("MIG-1").xids == {}
    card.xids += [(13, 1), (94, 2), (95, ANY_INSTANCE)]
    assert nvml.read("MIG-1").xids == {13: 1, 95: 1}


def test_events_before_the_card_was_lost_are_kept():
    card = Card("GPU-a")
    library = FakeNvml(card)
    nvml = Nvml(library)
    nvml.read("GPU-a")
    card.xids.append((79, 0))
    card.lost = True
    for _ in range(3):
        with pytest.raises(NvmlError, match="GPU is lost"):
            nvml.read("GPU-a")
    card.lost = False
    assert nvml.read("GPU-a").xids == {79: 1}
    assert library.event_sets == 1, "those of before are freed"
    card.xids.append((13, 0))
    assert nvml.read("GPU-a").xids == {79: 1, 13: 1}


@pytest.mark.parametrize("xid", [8, 13, 31, 43, 45, 63, 68, 92, 94, 109, 154, 155, 999])
def test_xids_of_runs_and_of_repairs_are_not_fatal(xid: int):
    assert describe_fatal_xids({xid: 3}) == ""


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 95, 119, 120, 140])
def test_xids_that_require_a_reset_are_fatal(xid: int):
    assert describe_fatal_xids({13: 1, xid: 1}).startswith(f"Xid {xid} (")
