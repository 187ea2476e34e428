"""Fingerprints of failures: one per kind of failure."""

from __future__ import annotations

import pytest

from jobs.domain.failure_fingerprints import fingerprint_of, kind_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Waited 600.5 s for slot 3", "Waited 12 s for slot 17"),
        ("CUDA out of memory: tried 2,048 MiB", "CUDA out of memory: tried 512 MiB"),
        ("no file /data/in/cat.png", "no file /srv/x-1/dog.jpg"),
        (r"no file C:\models\a.bin", r"no file D:\m\b.bin"),
        ("POST http://gpu-1:8000/run broke", "POST https://box.example/run?x=2 broke"),
        ("unknown voice 'Ann'", "unknown voice 'Bob the second'"),
        ('field "seed" is wrong', 'field "steps" is wrong'),
        ("job 01KA4Z9G2R7M3Q8W5T6Y1X0VBN died", "job 01KA4Z9G2R7M3Q8W5T6Y1X0VCP died"),
        ("run 3f2b8c1e-0000-4a5b-8c9d-1234567890ab lost", "run aaaaaaaa-1111-4a5b-8c9d-0987654321fe lost"),
        ("at 0x7ffdeadbeef", "at 0x1"),
        ("commit 9fceb02d0ae5 is bad", "commit 1a2b3c4d5e6f is bad"),
        ("10.0.0.7:8000 refused", "192.168.1.12:9 refused"),
        ("it  broke\n here", "It broke here"),
    ],
)
def test_ids_urls_paths_and_numbers_do_not_change_the_fingerprint(one: str, other: str) -> None:
    assert kind_of(one) == kind_of(other)
    assert fingerprint_of("run_failed", one) == fingerprint_of("run_failed", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("CUDA out of memory", "CUDA error: device-side assert"),
        ("no file /a", "no folder /a"),
        ("it can't be read, it isn't there", "it can't be written, it isn't there"),
        ("defaced facade", "effaced facade"),
    ],
)
def test_another_message_has_another_fingerprint(one: str, other: str) -> None:
    assert fingerprint_of("run_failed", one) != fingerprint_of("run_failed", other)


def test_another_error_code_has_another_fingerprint() -> None:
    assert fingerprint_of("timeout", "x") != fingerprint_of("poison", "x")


def test_a_fingerprint_is_sixteen_digits_and_stable() -> None:
    """Fingerprints are stored: another algorithm needs a migration."""
    assert fingerprint_of("timeout", "Waited 600 s") == "6ce5b2266d227bb1"
    assert kind_of("Waited 600.5 s for 'x' at /tmp/a") == "waited # s for <text> at <path>"


def test_half_a_surrogate_pair_and_long_messages_do_no_harm() -> None:
    assert len(fingerprint_of("x", "\ud800" + "'" * 100_000)) == 16
    assert fingerprint_of("x", "a" * 1000 + "1st") == fingerprint_of("x", "a" * 1000 + "tail")
