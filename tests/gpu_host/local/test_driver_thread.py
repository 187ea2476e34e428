"""Callers of a driver that hangs wait for a limited time, once."""

from __future__ import annotations

import threading
import time

import pytest

from gpu_host.local.nvml import DriverThread, DriverTimeout
from tests.support.waiting import wait_for


@pytest.fixture
def driver() -> DriverThread:
    return DriverThread("test-driver")


def test_an_answer_and_an_error_come_back(driver: DriverThread):
    assert driver.call(lambda: 7, 5.0) == 7
    with pytest.raises(KeyError):
        driver.call(lambda: {}["x"], 5.0)
    with pytest.raises(TimeoutError, match="its own"):
        driver.call(fails, 5.0)
    assert driver.call(lambda: 8, 5.0) == 8


def fails() -> None:
    raise TimeoutError("its own")


def test_later_calls_fail_at_once_until_the_driver_answers_again(driver: DriverThread):
    answers = threading.Event()
    asked: list[str] = []
    began = time.monotonic()
    with pytest.raises(DriverTimeout, match="does not answer"):
        driver.call(lambda: answers.wait(20), 0.5)
    assert 0.5 <= time.monotonic() - began < 10
    for _ in range(5):
        with pytest.raises(DriverTimeout):
            driver.call(lambda: asked.append("in vain"), 60.0)
    answers.set()
    wait_for(lambda: answered(driver))
    assert asked == []


def answered(driver: DriverThread) -> bool:
    try:
        return driver.call(lambda: True, 5.0)
    except DriverTimeout:
        return False


def test_a_call_that_timed_out_in_the_queue_is_not_made_later(driver: DriverThread):
    answers, hangs = threading.Event(), threading.Event()
    asked: list[str] = []
    first = threading.Thread(target=lambda: driver.call(lambda: hangs.set() or answers.wait(20), 60.0))
    first.start()
    assert hangs.wait(20)
    with pytest.raises(DriverTimeout):
        driver.call(lambda: asked.append("late"), 0.2)
    answers.set()
    first.join(20)
    assert wait_for(lambda: answered(driver))
    assert asked == []
