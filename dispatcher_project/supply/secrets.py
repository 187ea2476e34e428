"""Finds keys and passwords in the repository, for the gate and `supply secrets`. Standard library only.

The rules are those of gitleaks for the services that a dispatcher meets; docs/adr/0040 says why no library.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ALLOWED = "not-a-secret"
"""Marks, in a comment, a line whose example a rule takes for a key."""
# every repetition is bounded: a one-line file must not take quadratic time
_MAX_BYTES = 4_000_000
_ASSIGNED = r"(?i:secret|passw(?:or)?d|token|api_?key|credential)"


@dataclass(frozen=True, slots=True)
class Rule:
    """keywords: a file with one of them is searched. entropy: the least of group 1, in bits per character."""

    name: str
    keywords: tuple[str, ...]
    pattern: re.Pattern[str]
    entropy: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: looks like a secret ({self.rule})"


def _rule(name: str, keywords: Sequence[str], pattern: str, entropy: float = 0.0) -> Rule:
    return Rule(name, tuple(keywords), re.compile(pattern), entropy)


RULES = (
    _rule(
        "private key", ["PRIVATE KEY-----"], r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s*[A-Za-z0-9+/=\s\\n]{40}"
    ),
    _rule("AWS access key", ["AKIA", "ASIA"], r"\b((?:AKIA|ASIA)[A-Z2-7]{16})\b", 3.0),
    _rule("GitHub token", ["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"\b(gh[pousr]_[A-Za-z0-9]{36})\b", 3.0),
    _rule("GitHub token", ["github_pat_"], r"\b(github_pat_\w{82})\b", 3.0),
    _rule("GitLab token", ["glpat-"], r"\b(glpat-[\w-]{20,})", 3.0),
    _rule("Slack token", ["xox"], r"\b(xox[abeprs]-[0-9A-Za-z-]{20,})", 3.0),
    _rule("Slack webhook", ["hooks.slack.com"], r"hooks\.slack\.com/services/(T\w{8,}/B\w{8,}/\w{20,})", 3.0),
    _rule("Google API key", ["AIza"], r"\b(AIza[\w-]{35})\b", 3.5),
    _rule("OpenAI key", ["T3BlbkFJ"], r"\b(sk-[\w-]{0,100}T3BlbkFJ[\w-]{16})", 3.0),
    _rule("Anthropic key", ["sk-ant-"], r"\b(sk-ant-[\w-]{40,})", 3.5),
    _rule("Hugging Face token", ["hf_"], r"\b(hf_[A-Za-z]{34})\b", 3.0),
    _rule("Stripe key", ["k_live_"], r"\b([rs]k_live_[0-9a-zA-Z]{20,})", 3.0),
    _rule("npm token", ["npm_"], r"\b(npm_[A-Za-z0-9]{36})\b", 3.0),
    _rule("PyPI token", ["pypi-AgEI"], r"\b(pypi-AgEI[\w-]{50,})", 3.0),
    _rule("Docker token", ["dckr_pat_"], r"\b(dckr_pat_[\w-]{27,})", 3.0),
    _rule("JSON web token", ["eyJ"], r"\b(eyJ[\w-]{15,500}\.eyJ[\w-]{15,500}\.[\w-]{20})", 3.5),
    _rule("webhook signing secret", ["whsec_"], r"\b(whsec_[A-Za-z0-9+/]{24,}=*)", 4.0),
    _rule("key of this dispatcher", ["."], r"(?<![\w.])([A-Za-z0-9]{8}\.[A-Za-z0-9]{32})(?![\w.])", 4.0),
    _rule(
        "password in a URL",
        ["://"],
        r"[a-z][a-z0-9+]{2,}://[^\s:/@'\"<>{}]*:([^\s:/@'\"<>{}$]{10,})@[\w.-]",
        3.0,
    ),
    _rule(
        "assigned secret",
        ["secret", "SECRET", "assw", "ASSW", "oken", "OKEN", "key", "KEY", "redential", "REDENTIAL"],
        rf"{_ASSIGNED}[\w-]{{0,40}}['\"]?\s{{0,9}}(?::|=|: str =)\s{{0,9}}"
        r"['\"]([A-Za-z0-9+/_=-]{24,200})['\"]",
        4.0,
    ),
)


def scan(root: Path) -> Iterator[Found]:
    """Search every file that is, or would be, committed."""
    for path in _files(root):
        if not path.is_symlink() and path.is_file() and path.stat().st_size <= _MAX_BYTES:
            content = path.read_bytes()
            if b"\0" not in content:
                yield from find(content.decode(errors="replace"), str(path.relative_to(root)))


def find(text: str, path: str) -> Iterator[Found]:
    for rule in RULES:
        if not any(word in text for word in rule.keywords):
            continue
        for match in rule.pattern.finditer(text):
            line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
            if ALLOWED not in line and entropy(match[match.lastindex or 0]) >= rule.entropy:
                yield Found(path, text.count("\n", 0, match.start()) + 1, rule.name)


def entropy(text: str) -> float:
    """Shannon entropy in bits per character; a placeholder such as `xxxx` has almost none."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


def _files(root: Path) -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        return [path for path in sorted(root.rglob("*")) if not _is_generated(path.relative_to(root))]
    return [root / name for name in listed.split("\0") if name]


def _is_generated(path: Path) -> bool:
    return path.parts[0] == "var" or any(part.startswith(".") for part in path.parts)


def main(root: Path) -> int:
    """Print the places of secrets, never the secrets. Exit status: 1 if there are any."""
    found = list(scan(root))
    lines = [*map(str, found), f"{len(found)} secrets in files" if found else "no secrets in files"]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2]))
