"""The pages of a model server, and the proposals of runners for its registration.

Each runner may have a class method `recognise(site)`. It reads the pages that only its protocol has, and
returns proposals; an unknown server gets none. Pages are foreign bytes: bounded in size, time and number.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from gpus.errors import ConnectFailed, GpuError, RunFailed
from gpus.runners.base import Get, Response
from gpus.runners.transport import Unreadable, read_json

PAGE_BYTES = 1_000_000
PAGE_SECONDS = 3.0
SITE_SECONDS = 12.0
"""All pages of a server: none is begun that could end later."""
MAX_PROPOSALS = 20
OWN_PROTOCOL, COMPATIBLE, GENERIC = 3, 2, 1
"""Basis of a proposal: the protocol's own page, a page of several protocols, or any HTTP answer."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME = 64


class Unreachable(Exception):
    """The server does not answer; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """How to register one model of the server.

    model: proposed name. endpoint: URL. slots: runs at one time. options: of the model, by name. certainty:
    OWN_PROTOCOL, COMPATIBLE or GENERIC. reasons: sentences for the operator. test_payload: of a first job;
    None if no payload is known that the model would take.
    """

    model_type: str
    model: str
    endpoint: str
    certainty: int
    reasons: tuple[str, ...]
    slots: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    test_payload: Any = None


class Site:
    """The pages of one server; each is fetched once.

    url: as the operator gave it, without a slash at its end. root: its origin. problems: sentences about
    pages that could not be read, for the operator. seconds: for all pages; none is begun after that.
    """

    def __init__(
        self,
        url: str,
        get: Get,
        *,
        clock: Callable[[], float] = time.monotonic,
        seconds: float = SITE_SECONDS - PAGE_SECONDS,
    ) -> None:
        parts = urlsplit(url)
        self.url = url.rstrip("/")
        self.root = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        self.path = parts.path.rstrip("/")
        self.problems: list[str] = []
        self._get, self._clock, self._seconds = get, clock, seconds
        self._until = clock() + seconds
        self._pages: dict[str, Response | None] = {}

    def page(self, url: str) -> Response | None:
        """The answer to a GET of any status; None if there was none. Raises Unreachable if no server
        listens."""
        if url not in self._pages:
            self._pages[url] = self._fetch(url)
        return self._pages[url]

    def json(self, url: str) -> Any:
        """The page's JSON if its status is 200, else None."""
        answer = self.page(url)
        if answer is None or answer.status != 200:
            return None
        try:
            return read_json(answer.body)
        except Unreadable:
            return None

    @property
    def answers(self) -> bool:
        """Whether any page got an answer that is no redirect."""
        return any(page is not None and not 300 <= page.status < 400 for page in self._pages.values())

    def _fetch(self, url: str) -> Response | None:
        if self._clock() >= self._until:
            self._note(f"The server took over {self._seconds:.0f} s; its other pages were not read.")
            return None
        try:
            answer = self._get(url)
        except ConnectFailed as error:
            raise Unreachable(error.message) from error
        except RunFailed:
            self._note(f"{url} answered more than {PAGE_BYTES:,} bytes or no HTTP; that page was not read.")
            return None
        except GpuError as error:
            self._note(f"{url} gave no answer: {error.message[:200]}")
            return None
        if 300 <= answer.status < 400:
            self._note(f"{url} redirects; redirects are not followed: give the address it leads to.")
        return answer

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def model_name(text: str) -> str:
    """A valid registry name, made from the server's name of the model.

    >>> model_name("meta-llama/Llama-3.1-8B-Instruct")
    'Llama-3.1-8B-Instruct'
    """
    last = text.rstrip("/").rsplit("/", 1)[-1]
    return _NOT_IN_NAMES.sub("-", last).lstrip("-._").rstrip("-.")[:_MAX_NAME] or "model"


def with_distinct_names(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals, each with a name of its own: the server's whole name or path, then a number."""
    number = Counter(one.model for one in proposals)
    taken = {name for name, times in number.items() if times == 1}
    found = []
    for one in proposals:
        name = one.model
        if number[name] > 1:
            whole = one.options.get("remote_model") or unquote(urlsplit(one.endpoint).path)
            name = model_name(whole.replace("/", "-"))
            others = (f"{name[: _MAX_NAME - 3]}.{count}" for count in range(2, MAX_PROPOSALS + 2))
            name = next(each for each in (name, *others) if each not in taken)
            taken.add(name)
        found.append(replace(one, model=name))
    return found


def server_name(url: str) -> str:
    """
    >>> server_name("http://box-1:8000/v1")
    'box-1-8000'
    """
    return _NOT_IN_NAMES.sub("-", urlsplit(url).netloc.rsplit("@", 1)[-1]).strip("-.")[:_MAX_NAME] or "server"


def listed(document: Any, array: str, key: str) -> list[str]:
    """The names that a server lists: the texts under `key` of the objects in `array`, MAX_PROPOSALS at most.

    >>> listed({"data": [{"id": "a"}, {"id": 3}]}, "data", "id")
    ['a']
    """
    items = document.get(array) if isinstance(document, dict) else None
    names = (
        [one.get(key) for one in items[:MAX_PROPOSALS] if isinstance(one, dict)]
        if isinstance(items, list)
        else []
    )
    return [name for name in names if isinstance(name, str) and name.isprintable() and 0 < len(name) <= 200]
