"""Who asks a driver that hangs waits for a bound, once."""

from __future__ import annotations

import threading
import time

import pytest

from gpu_host.local.nvml import DriverThread, Unanswered
from tests.support.waiting import wait_for


@pytest.fixture
def driver() -> DriverThread:
    return DriverThread("test-driver")


def test_an_answer_and_an_error_come_back(driver: DriverThread):
    assert driver.ask(lambda: 7, 5.0) == 7
    with pytest.raises(KeyError):
        driver.ask(lambda: {}["x"], 5.0)
    with pytest.raises(TimeoutError, match="its own"):
        driver.ask(fails, 5.0)
    assert driver.ask(lambda: 8, 5.0) == 8


def fails() -> None:
    raise TimeoutError("its own")


def test_everybody_gives_up_at_once_until_the_driver_answers_again(driver: DriverThread):
    answers = threading.Event()
    asked: list[str] = []
    began = time.monotonic()
    with pytest.raises(Unanswered, match="does not answer"):
        driver.ask(lambda: answers.wait(20), 0.5)
    assert 0.5 <= time.monotonic() - began < 10
    for _ in range(5):
        with pytest.raises(Unanswered):
            driver.ask(lambda: asked.append("in vain"), 60.0)
    answers.set()
    wait_for(lambda: answered(driver))
    assert asked == []


def answered(driver: DriverThread) -> bool:
    try:
        return driver.ask(lambda: True, 5.0)
    except Unanswered:
        return False


def test_what_waited_behind_another_in_vain_is_not_asked_later(driver: DriverThread):
    answers, hangs = threading.Event(), threading.Event()
    asked: list[str] = []
    first = threading.Thread(target=lambda: driver.ask(lambda: hangs.set() or answers.wait(20), 60.0))
    first.start()
    assert hangs.wait(20)
    with pytest.raises(Unanswered):
        driver.ask(lambda: asked.append("late"), 0.2)
    answers.set()
    first.join(20)
    assert wait_for(lambda: answered(driver))
    assert asked == []
