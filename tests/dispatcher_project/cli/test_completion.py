"""The completion scripts, asked as a shell asks them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from dispatcher_project.cli.completion import SCRIPTS, Option, Spec

SPECS = [
    Spec("submit", "Submit a job", (
        Option(("-h", "--help"), "show this"),
        Option(("--if-busy",), "what's done [if busy]: 100 %", ("queue", "reject")),
        Option(("--tag",), "free text", ()),
        Option(("--data-dir",), "a folder", "files"),
    )),
    Spec("keys", "List keys", (Option(("--help",), "show this"),), ("list", "revoke")),
]  # fmt: skip
ASKED = 'source /dev/stdin; COMP_WORDS=($WORDS); COMP_CWORD=$AT; _gpu_dispatcher; echo "${COMPREPLY[@]}"'


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    if (bash := shutil.which("bash")) is None:
        pytest.skip("no bash")
    shown = " ".join(word or "''" for word in ("gpu-dispatcher", *words))
    command = f"WORDS=1; {ASKED}".replace("($WORDS)", f"({shown})").replace("$AT", str(len(words)))
    done = subprocess.run(
        [bash, "-c", command], input=SCRIPTS["bash"](SPECS), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_choices() -> None:
    assert completed("s") == ["submit"]
    assert completed("") == ["submit", "keys", "--help", "--version"]
    assert completed("submit", "--") == ["--help", "--if-busy", "--tag", "--data-dir"]
    assert completed("submit", "m", "--if-busy", "r") == ["reject"]
    assert completed("submit", "--tag", "") == []
    assert completed("keys", "") == ["list", "revoke"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(shell: str) -> None:
    if (found := shutil.which(shell)) is None:
        pytest.skip(f"no {shell}")
    script = SCRIPTS[shell](SPECS)
    assert "reject" in script
    done = subprocess.run([found, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
