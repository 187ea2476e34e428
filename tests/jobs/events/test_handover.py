from __future__ import annotations

import itertools

import pytest

from jobs.events.handover import Follow


@pytest.mark.parametrize(("with_output", "in_full"), list(itertools.product([True, False], repeat=2)))
def test_a_readers_permissions_are_passed_in_the_header(with_output: bool, in_full: bool) -> None:
    follow = Follow("J1", 3, with_output, in_full, "user:ä b")
    assert Follow.from_header(follow.as_header()) == follow
