"""Files of https URLs through a whole dispatcher and a real HTTPS server: its own resolver, trust store and
settings, with nothing replaced."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from dispatcher_project.supervisor.embedded import find_valkey
from tests.support.servers.certificate import make_certificate
from tests.support.servers.raw_server import RawServer, Visit
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario
PNG = b"\x89PNG\r\n\x1a\n" + bytes(1000)
MOST_BYTES, MOST_SECONDS = 2_000_000, 4.0
IMAGE = {"type": "string", "format": "uri", "contentMediaType": "image/*"}
SCHEMA = {"type": "object", "properties": {"image": IMAGE}}
ALLOWED = "127.0.0.1/32"
Script = Callable[[Visit, str], None]


class Site:
    """An HTTPS server at `localhost`. pages: answers by path. asked: paths, in order. sent: bytes of endless
    bodies that it could send."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self.pages: dict[str, Script] = {}
        self.asked: list[str] = []
        self.sent = 0
        self._lock = threading.Lock()
        self.server = RawServer(self._answer, tls=tls)

    def url(self, path: str) -> str:
        return f"https://localhost:{self.server.port}{path}"

    def _answer(self, visit: Visit) -> None:
        path = visit.read_request().split()[1].decode()
        with self._lock:
            self.asked.append(path)
        self.pages[path](visit, path)

    def send(self, visit: Visit, data: bytes) -> None:
        visit.send(data)
        with self._lock:
            self.sent += len(data)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"), "localhost")


@pytest.fixture(scope="module")
def fetching(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[System]:
    if find_valkey() is None:
        pytest.skip("no Valkey or Redis server binary")
    settings = {
        "SSL_CERT_FILE": str(certificate),
        "DISPATCHER_FETCHED_URLS": "2",
        "DISPATCHER_FETCHED_URL_NETWORKS": ALLOWED,
        "DISPATCHER_FETCHED_URL_BYTES": str(MOST_BYTES),
        "DISPATCHER_FETCHED_URL_SECONDS": str(MOST_SECONDS),
    }
    system = System(tmp_path_factory.mktemp("u") / "var", environment=settings)
    system.add_server("draw", payload_schema=SCHEMA)
    yield system
    system.stop()


@pytest.fixture
def site(certificate: Path) -> Iterator[Site]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    site = Site(tls)
    with site.server:
        yield site


def submit(system: System, url: str) -> requests.Response:
    return requests.post(
        f"{system.facts['url']}/api/v1/queue/submit",
        json={"model": "draw", "payload": {"image": url}},
        headers={"Authorization": f"Bearer {system.facts['tenant_key']}"},
        timeout=120,
    )


def refused(answer: requests.Response) -> str:
    """The reason of a refusal."""
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "file_not_fetched"), answer.text
    return str(problem["detail"])


def page(body: bytes = PNG, head: str = "Content-Type: image/png") -> Script:
    return lambda visit, path: visit.answer(body, head=f"{head}\r\n")


def redirect(to: str, status: str = "302 Found") -> Script:
    return lambda visit, path: visit.send(
        f"HTTP/1.1 {status}\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()
    )


def artifacts(system: System) -> int:
    return len(system.tenant.ask("GET", "/artifacts")["results"])


def test_a_file_is_read_over_five_redirects(fetching: System, site: Site) -> None:
    for number, status in enumerate(("301 A", "302 B", "303 C", "307 D", "308 E")):
        to = f"/{number + 1}" if number % 2 else site.url(f"/{number + 1}")
        site.pages[f"/{number}"] = redirect(to, status)
    site.pages["/5"] = page()
    answer = submit(fetching, site.url("/0"))
    assert answer.status_code == 202, answer.text
    assert site.asked == [f"/{number}" for number in range(6)]
    site.pages["/before"] = redirect(site.url("/0"))
    assert "5 redirects" in refused(submit(fetching, site.url("/before")))
    assert site.asked[6:] == ["/before", *(f"/{number}" for number in range(5))]


@pytest.mark.parametrize(
    "to",
    [
        "https://127.0.0.2:{port}/x",
        "https://[::1]:{port}/x",
        "https://[::ffff:127.0.0.2]:{port}/x",
        "https://2130706434:{port}/x",
        "https://0x7f.2:{port}/x",
        "https://10.0.0.1/x",
        "https://169.254.169.254/latest/meta-data/",
        "https://0.0.0.0:{port}/x",
        "http://localhost:{port}/x",
        "file:///etc/passwd",
        "{dispatcher}",
        "https://user:secret@localhost:{port}/x",
    ],
)
def test_each_address_after_a_redirect_is_checked(fetching: System, site: Site, to: str) -> None:
    """A server that waits on all addresses of this machine would be reached by any that is let through."""
    target = to.format(port=site.server.port, dispatcher=fetching.facts["url"].replace("http://", "https://"))
    site.pages |= {"/a": redirect(target), "/x": page()}
    before = artifacts(fetching)
    why = refused(submit(fetching, site.url("/a")))
    assert site.asked == ["/a"], why
    assert "secret" not in why
    assert artifacts(fetching) == before


def test_compressed_answers_are_refused_unread(fetching: System, site: Site) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    for coding in ("gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip"):
        site.pages["/bomb"] = page(bomb, f"Content-Type: image/png\r\nContent-Encoding: {coding}")
        assert f"(Content-Encoding: {coding.lower()})" in refused(submit(fetching, site.url("/bomb")))
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n%x\r\n" % len(bomb)
    site.pages["/chunks"] = lambda visit, path: visit.send(chunked + bomb + b"\r\n0\r\n\r\n")
    assert "(Transfer-Encoding: gzip, chunked)" in refused(submit(fetching, site.url("/chunks")))
    # without the header they are the bytes of a file, of the wrong type
    site.pages["/plain"] = page(gzip.compress(PNG), "Content-Type: image/png")
    wrong = submit(fetching, site.url("/plain"))
    assert (wrong.status_code, wrong.json()["code"]) == (422, "file_type_wrong")


def test_an_endless_answer_ends_at_its_size(fetching: System, site: Site) -> None:
    def endless(visit: Visit, path: str) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            site.send(visit, b"10000\r\n" + bytes(0x10000) + b"\r\n")

    site.pages |= {"/endless": endless, "/to": redirect("/endless")}
    assert "DISPATCHER_FETCHED_URL_BYTES" in refused(submit(fetching, site.url("/to")))
    wait_for(site.server.closed.is_set)
    assert site.sent < MOST_BYTES + 20_000_000, "what the buffers of two sockets take"


def test_slow_redirects_and_drops_share_one_time(fetching: System, site: Site) -> None:
    """Each hop is within the time, all of them are not."""

    def late(visit: Visit, path: str) -> None:
        visit.server.hung_up.wait(MOST_SECONDS * 0.4)
        redirect(f"{path}+")(visit, path)

    def dripping(visit: Visit, path: str) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not visit.server.hung_up.wait(0.05):
            visit.send(b".")

    site.pages |= {"/late" + "+" * number: late for number in range(6)} | {"/drip": dripping}
    for path in ("/late", "/drip"):
        assert "DISPATCHER_FETCHED_URL_SECONDS" in refused(submit(fetching, site.url(path)))
    assert 1 < len([path for path in site.asked if path.startswith("/late")]) < 6


def test_a_certificate_of_another_name_is_refused_after_a_redirect(fetching: System, site: Site) -> None:
    site.pages |= {"/a": redirect(f"https://127.0.0.1:{site.server.port}/x"), "/x": page()}
    refused(submit(fetching, site.url("/a")))
    assert site.asked == ["/a"]


def test_a_workers_read_has_the_same_bounds(fetching: System, site: Site) -> None:
    """`submit` on the dispatcher's machine sends the URL as it is, and the worker reads it."""
    away = redirect(f"https://127.0.0.2:{site.server.port}/b")
    site.pages |= {"/a": redirect("/b"), "/b": page(), "/away": away}

    for path, expected in (("/a", "completed"), ("/away", "failed")):
        payload = json.dumps({"image": site.url(path)})
        submitted = json.loads(fetching.manage("submit", "draw", payload, "--json"))
        found = fetching.operator.finished(submitted["job_id"])
        assert found["status"] == expected, found
    assert found["error"]["code"] == "bad_input"
    assert site.asked == ["/a", "/b", "/away"]
