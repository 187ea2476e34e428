"""As much of PromQL as our rules and panels speak: enough to refuse what Prometheus would refuse."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"\s*(?:(?P<duration>\[[^\]]*\])|(?P<number>\d+(?:\.\d+)?)|(?P<text>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>[a-zA-Z_:][\w:]*)|(?P<op>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},]))"
)
_DURATION = re.compile(r"\[(?:\d+[smhdw])+\]")
_AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
FUNCTIONS = {
    "rate": 1, "increase": 1, "delta": 1, "avg_over_time": 1, "abs": 1, "absent": 1, "vector": 1,
    "histogram_quantile": 2, "label_replace": 5,
}  # fmt: skip
_RANGED = {"rate", "increase", "delta", "avg_over_time"}
_BINARY = {"+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "and", "or", "unless"}


class BadQuery(Exception):
    pass


@dataclass
class Query:
    """selectors: (metric, labels it is asked by). grouped: labels after by, without, on, ignoring."""

    selectors: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def read(text: str) -> Query:
    """Raises BadQuery."""
    reader = _Reader(text)
    reader.expression()
    if reader.left:
        raise BadQuery(f"not understood from {reader.left[0]!r} on: {text}")
    return reader.found


class _Reader:
    def __init__(self, text: str) -> None:
        self.left: list[tuple[str, str]] = []
        self.found = Query()
        place = 0
        while place < len(text.rstrip()):
            token = _TOKEN.match(text, place)
            if token is None or token.lastgroup is None:
                raise BadQuery(f"{text[place:]!r} in {text}")
            self.left.append((token.lastgroup, token[token.lastgroup]))
            place = token.end()

    def expression(self) -> bool:
        """True: a range, which only some functions take."""
        is_range = self._operand()
        while self._next() in _BINARY:
            self._take()
            if self._next() in ("on", "ignoring"):
                self._take()
                self._labels()
            self._operand()
        return is_range

    def _operand(self) -> bool:
        kind, word = self._take()
        if word == "-":
            return self._operand()
        if word == "(":
            self.expression()
            self._expect(")")
            return False
        if kind in ("number", "text"):
            return False
        if kind != "name":
            raise BadQuery(f"{word!r} stands where a value should")
        if word in _AGGREGATIONS:
            self._aggregation()
            return False
        if word in FUNCTIONS:
            self._call(word)
            return False
        return self._selector(word)

    def _aggregation(self) -> None:
        if self._next() in ("by", "without"):
            self._take()
            self._labels()
        self._expect("(")
        if self.expression():
            raise BadQuery("an aggregation of a range")
        self._expect(")")
        if self._next() in ("by", "without"):
            self._take()
            self._labels()

    def _call(self, function: str) -> None:
        self._expect("(")
        ranges = [self.expression()]
        while self._next() == ",":
            self._take()
            ranges.append(self.expression())
        self._expect(")")
        if len(ranges) != FUNCTIONS[function]:
            raise BadQuery(f"{function} with {len(ranges)} arguments")
        if any(ranges) != (function in _RANGED):
            raise BadQuery(f"{function} and ranges")

    def _selector(self, metric: str) -> bool:
        labels: set[str] = set()
        if self._next() == "{":
            self._take()
            while self._next() != "}":
                kind, label = self._take()
                if kind != "name" or self._take()[1] not in ("=", "!=", "=~", "!~"):
                    raise BadQuery(f"a label of {metric}")
                kind, value = self._take()
                if kind != "text":
                    raise BadQuery(f"the value of {label}")
                re.compile(value[1:-1])
                labels.add(label)
                if self._next() == ",":
                    self._take()
            self._take()
        self.found.selectors.append((metric, labels))
        if self.left and self.left[0][0] == "duration":
            if not _DURATION.fullmatch(self._take()[1]):
                raise BadQuery(f"the range of {metric}")
            return True
        return False

    def _labels(self) -> None:
        self._expect("(")
        while self._next() != ")":
            self.found.grouped.add(self._take()[1])
            if self._next() == ",":
                self._take()
        self._take()

    def _next(self) -> str:
        return self.left[0][1] if self.left else ""

    def _take(self) -> tuple[str, str]:
        if not self.left:
            raise BadQuery("it ends too early")
        return self.left.pop(0)

    def _expect(self, word: str) -> None:
        if (found := self._take()[1]) != word:
            raise BadQuery(f"{found!r} in place of {word!r}")
