from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dispatcher_project import checks
from dispatcher_project.supply import secrets
from dispatcher_project.supply.secrets import RULES, find, main, scan

LETTERS = "aZ3kQ9xLm7Pw2Rt8Vb5Nc1Yd6Hf4Gj0SuEi" * 3
CAPITALS = "Q7ZKX2MPL5RTV4BN"
PLANTED = {
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----\n" + LETTERS,
    "AWS access key": "AKIA" + CAPITALS,
    "GitHub token": "ghp_" + LETTERS[:36],
    "GitLab token": "glpat-" + LETTERS[:20],
    "Slack token": "xoxb-" + LETTERS[:30],
    "Slack webhook": "https://hooks.slack.com/services/T" + f"{CAPITALS[:9]}/B{CAPITALS[:9]}/{LETTERS[:24]}",
    "Google API key": "AIza" + LETTERS[:35],
    "OpenAI key": "sk-proj-" + LETTERS[:20] + "T3Blbk" + "FJ" + LETTERS[20:40],
    "Anthropic key": "sk-ant-" + "api03-" + LETTERS[:90],
    "Hugging Face token": "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNmQaZwSxEd",
    "Stripe key": "sk_live_" + LETTERS[:24],
    "npm token": "npm_" + LETTERS[:36],
    "PyPI token": "pypi-AgEI" + LETTERS[:60],
    "Docker token": "dckr_pat_" + LETTERS[:27],
    "JSON web token": "eyJ" + LETTERS[:20] + ".eyJ" + LETTERS[:20] + "." + LETTERS[:30],
    "webhook signing secret": "whsec_" + LETTERS[:32],
    "key of this dispatcher": LETTERS[:8] + "." + LETTERS[8:40],
    "password in a URL": "postgresql://postgres:" + LETTERS[:14] + "@db.example/jobs",
    "assigned secret": "DJANGO_SECRET_KEY = '" + LETTERS[:50] + "'",
}


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_secret_is_located_and_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    (tmp_path / "settings.py").write_text(f"first = 1\nvalue = '{PLANTED[rule]}'\nlast = 2\n")
    assert main(tmp_path) == 1
    said = capsys.readouterr().out
    assert f"settings.py:2: looks like a secret ({rule})" in said
    assert LETTERS[2:12] not in said
    assert CAPITALS not in said


def test_every_rule_has_a_planted_secret() -> None:
    assert {rule.name for rule in RULES} == set(PLANTED)


@pytest.mark.parametrize(
    "text",
    [
        "AKIA" + "A" * 16,
        "ghp_" + "x" * 36,
        "postgresql://postgres:${POSTGRES_PASSWORD}@db/jobs",
        "postgresql://user:password@host/db",
        "secret_key = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'",
        "token = 'put the token of your account here, please'",
        "sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274",
        f"{PLANTED['AWS access key']}  # {secrets.ALLOWED}",
    ],
)
def test_a_placeholder_is_no_alarm(text: str) -> None:
    assert list(find(text, "file")) == []


def test_files_that_would_be_committed_are_searched_and_ignored_ones_are_not(tmp_path: Path) -> None:
    for name in ("kept.py", "new.py", "ignored.env"):
        (tmp_path / name).write_text(PLANTED["AWS access key"])
    (tmp_path / "picture.png").write_bytes(b"\0" + PLANTED["AWS access key"].encode())
    (tmp_path / ".gitignore").write_text("*.env\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "kept.py"], cwd=tmp_path, check=True)
    assert {found.path for found in scan(tmp_path)} == {"kept.py", "new.py"}
    shutil.rmtree(tmp_path / ".git")
    assert {found.path for found in scan(tmp_path)} == {"kept.py", "new.py", "ignored.env"}


def test_the_gate_looks_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(checks, "_started", started.append)
    monkeypatch.setattr(checks, "_checked", lambda *_: None)
    with checks.ThreadPoolExecutor(1) as threads:
        checks._static_checks(threads)
    assert any("dispatcher_project.supply.secrets" in command for command in started)


def test_a_hostile_text_costs_no_more_than_its_length() -> None:
    pieces = ("-----BEGIN PRIVATE KEY-----", "eyJ", "secret" * 50, "a://" * 50, "x" * 8 + ".", "sk-T3BlbkFJ-")
    for piece in pieces:
        assert len(list(find(piece * (300_000 // len(piece)), "file"))) < 300_000
