"""Invalid options are refused in one line, before anything is started."""

from __future__ import annotations

import pytest

from verification.hostile import main as hostile
from verification.hostile.attacks.registry import ATTACKS
from verification.hostile.options import read_options
from verification.proving import main as proving

KNOWN = ("s05", "s06")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--attacks", "s05,nonsense"], "unknown attack nonsense; known are s05, s06"),
        (["--attacks", ","], "unknown attack ','"),
        (["--url", "http://x"], "--url needs --api-key"),
        (["--url", "http://x", "--api-key", "k", "--up-json", "up.json"], "give either"),
        (["--up-json", "/nowhere/up.json"], "there is no /nowhere/up.json"),
        (["--url", "http://x", "--api-key", "k", "--data-dir", "x"], "that the trial starts itself"),
        (["--seconds", "0"], "--seconds is a number from 0.5 to 600"),
        (["--tenants", "one"], "--tenants names two tenants"),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPATCHER_API_KEY", raising=False)
    with pytest.raises(SystemExit) as refused:
        read_options(["--hostile", *arguments], KNOWN)
    assert refused.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_without_names_every_attack_is_played_in_order() -> None:
    assert read_options(["--hostile"], KNOWN).attacks == KNOWN
    assert read_options(["--hostile", "--attacks", "s06, s05"], KNOWN).attacks == ("s06", "s05")


def test_prove_lists_the_attacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert proving.main(["--hostile", "--list"]) == hostile.HELD
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(ATTACKS)
    assert len(listed) == len(set(listed))
