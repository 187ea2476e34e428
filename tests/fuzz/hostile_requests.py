"""Sends hostile requests to every operation of a running dispatcher: no answer may be a server error.

    python3 manage.py up &
    .venv/bin/python -m tests.fuzz.hostile_requests --seconds 600

schemathesis makes requests from the published OpenAPI document, valid and invalid ones; each body is then
mutated. A 503 with Retry-After is a refusal. It cancels and deletes: never attack a dispatcher in use.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import variations

FRAMING = ("content-length", "transfer-encoding", "connection", "upgrade", "expect", "host")
"""Header fields of HTTP itself: they belong to the attacks on the web server (`prove --hostile`)."""
_EXAMPLES, _VARIATIONS = 4, 4
_TIMEOUT_SECONDS = 30
_READ_BYTES = 64 * 1024


@dataclass
class Tally:
    """statuses: of the answers; closed: connections without one. failures: what must not be, as text."""

    statuses: Counter[int] = field(default_factory=Counter)
    closed: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.statuses.total() + self.closed

    def __str__(self) -> str:
        counts = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        return f"{self.requests} requests, {counts}; {self.closed} connections closed without an answer"


def attack(url: str, keys: Sequence[str], *, seconds: float, chance: random.Random) -> Tally:
    """keys: each request has one of these, or none. Ends after `seconds`."""
    tally = Tally()
    document = schemathesis.openapi.from_url(f"{url}/api/v1/schema")
    operations = [found.ok() for found in document.get_all_operations()]
    until = time.monotonic() + seconds
    with requests.Session() as session:
        while time.monotonic() < until:
            chance.shuffle(operations)
            for operation in operations:
                for mode in schemathesis.GenerationMode:
                    for request in _requests(operation, mode, url, chance):
                        headers = {**request.pop("headers", {}), **_authorization(keys, chance)}
                        _send(session, request, headers, tally)
                        if time.monotonic() >= until:
                            return tally
    return tally


def _requests(operation: Any, mode: Any, url: str, chance: random.Random) -> Iterator[dict[str, Any]]:
    """What `requests` sends: generated cases, then each with its body mutated."""
    made: list[dict[str, Any]] = []

    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    @settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    def make(case: schemathesis.Case, data: Any) -> None:
        made.append(case.as_transport_kwargs(base_url=url))

    make()
    for request in made:
        request["headers"] = {
            name: value for name, value in request.get("headers", {}).items() if name.lower() not in FRAMING
        }
        yield dict(request)
        body = request.pop("json", None)
        if body is not None:
            content = json.dumps(body).encode()
            request["headers"] = {**request["headers"], "Content-Type": "application/json"}
            for one in list(variations(content, chance.getrandbits(64), _VARIATIONS))[1:]:
                yield {**request, "data": one}


def _authorization(keys: Sequence[str], chance: random.Random) -> dict[str, str]:
    key = chance.choice((*keys, *keys, ""))
    return {"Authorization": f"Bearer {key}"} if key else {}


def _send(session: requests.Session, request: dict[str, Any], headers: dict[str, str], tally: Tally) -> None:
    try:
        answer = session.request(
            **request, headers=headers, timeout=_TIMEOUT_SECONDS, allow_redirects=False, stream=True
        )
    except (requests.ConnectionError, requests.Timeout):
        tally.closed += 1
        return
    except (requests.RequestException, ValueError):  # no client could send it: it is no request
        return
    with answer:
        try:
            body = answer.raw.read(_READ_BYTES)
        except Exception as error:
            tally.failures.append(f"{request['method']} {request['url']}: half an answer: {error}")
            return
        tally.statuses[answer.status_code] += 1
        if answer.status_code >= 500 and not (answer.status_code == 503 and "Retry-After" in answer.headers):
            sent = {name: value for name, value in request.items() if name not in ("method", "url")}
            tally.failures.append(
                f"{request['method']} {request['url']} {sent!r:.1000} -> {answer.status_code} {body!r:.500}"
            )


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 no server error, 1 at least one, 3 there is no dispatcher to attack."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.hostile_requests", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--data-dir", type=Path, default=Path("var"), help="of the `up` that is attacked")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    try:
        info = json.loads((options.data_dir / "up.json").read_text())
        seed = random.randrange(2**32) if options.seed is None else options.seed
        keys = [info["tenant_key"], info["api_key"]]
        tally = attack(info["url"], keys, seconds=options.seconds, chance=random.Random(seed))
    except (OSError, KeyError, ValueError) as error:
        sys.stderr.write(f"no dispatcher runs in {options.data_dir}: {error}\n")
        return 3
    sys.stdout.write(f"seed {seed}: {tally}\n")
    for failure in tally.failures:
        sys.stdout.write(f"{failure}\n")
    return int(bool(tally.failures) or not tally.requests)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
