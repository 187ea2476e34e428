"""https URLs at places for files: read once, through the guard, by the real web process."""

from __future__ import annotations

import errno
import gzip
import json
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import requests

from artifacts.models import Artifact
from foundation import fetch
from jobs.callbacks import guard
from jobs.models import Job
from jobs.submission import fetched_urls
from tests.support.api_harness import Account, account, make_model
from tests.support.live_web import redis_url, web
from tests.support.servers.certificate import make_certificate
from tests.support.servers.raw_server import RawServer, Visit
from tests.support.servers.web import Web

__all__ = ["redis_url", "web"]
SUBMIT, BATCH = "/api/v1/queue/submit", "/api/v1/queue/submit-batch"
NAME = "files.example.test"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
IMAGE = {"type": "string", "format": "uri", "contentMediaType": "image/*"}
SCHEMA = {
    "type": "object",
    "properties": {"image": IMAGE, "more": {"type": "array", "items": IMAGE}, "link": {"type": "string"}},
}
Script = Callable[[Visit], None]


def limit(settings: Any, **limits: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, **limits)


@pytest.fixture
def tenant(transactional_db: None, tmp_path: Path, settings: Any) -> Account:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    limit(
        settings,
        artifact_reserve_bytes=0,
        fetched_urls=8,
        fetched_url_networks=("127.0.0.0/8",),
        fetched_url_seconds=20.0,
    )
    make_model("zimg", payload_schema=SCHEMA)
    return account("acme")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Stands in for DNS: per name the answers to come, the last one for ever."""
    table: dict[str, list[list[str]]] = {NAME: [["127.0.0.1"]]}

    def resolve(host: str, port: int) -> list[guard.Address]:
        if host not in table:
            raise OSError(f"no such name: {host}")
        answers = table[host]
        return [ip_address(text) for text in (answers.pop(0) if len(answers) > 1 else answers[0])]

    monkeypatch.setattr(guard, "resolve", resolve)
    return table


class Site:
    """An HTTPS server. script: answers each request. asked: paths, in order."""

    def __init__(self, server: RawServer) -> None:
        self._server = server
        self.script: Script = lambda visit: visit.answer(PNG, head="Content-Type: image/png\r\n")
        self.open, self.most_open = 0, 0
        self.lock = threading.Lock()

    @property
    def asked(self) -> list[str]:
        return [one.split()[1].decode() for one in self._server.requests]

    @property
    def port(self) -> int:
        return self._server.port

    def url(self, path: str = "/cat.png", host: str = NAME) -> str:
        return f"https://{host}:{self.port}{path}"


@pytest.fixture
def site(
    tmp_path: Path, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    certificate = make_certificate(tmp_path, NAME)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    trusts = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(fetch, "_tls", lambda: trusts)

    def script(visit: Visit) -> None:
        if not visit.read_request():
            return
        with site.lock:
            site.open += 1
            site.most_open = max(site.most_open, site.open)
        try:
            site.script(visit)
        finally:
            with site.lock:
                site.open -= 1

    with RawServer(script, tls=context) as server:
        site = Site(server)
        yield site


def post(web: Web, sender: Account, body: Any, path: str = SUBMIT, **headers: str) -> requests.Response:
    return requests.post(
        web.url + path,
        json=body,
        headers={"Authorization": f"Bearer {sender.key}", **headers},
        timeout=60,
    )


def submit(web: Web, sender: Account, payload: Any, **headers: str) -> requests.Response:
    return post(web, sender, {"model": "zimg", "payload": payload}, **headers)


def refusal(answer: requests.Response) -> tuple[int, str, str]:
    problem = answer.json()
    return answer.status_code, problem["code"], problem["errors"][0]["pointer"]


def assert_nothing_stored() -> None:
    assert not Job.objects.exists()
    assert not Artifact.objects.exists()


@pytest.mark.database
def test_the_file_of_a_url_becomes_an_artifact(web: Web, tenant: Account, site: Site) -> None:
    link = site.url("/elsewhere")
    url = site.url("/cats/gr%C3%BCn.png?size=2")
    answer = submit(web, tenant, {"image": url, "more": [url], "link": link}, Prefer="wait=0")
    assert answer.status_code == 202, answer.text
    job = Job.objects.get()
    row = Artifact.objects.get()
    assert job.payload == {"image": {"$artifact": row.pk}, "more": [{"$artifact": row.pk}], "link": link}
    assert (row.bytes, row.content_type, row.name, row.state) == (len(PNG), "image/png", "grün.png", "stored")
    assert site.asked == ["/cats/gr%C3%BCn.png?size=2"]
    assert site._server.requests[0].split(b"Host: ")[1].startswith(NAME.encode())
    assert row.made_by_key != ""
    assert [use.job for use in row.uses.all()] == [job.id]


def test_without_the_setting_a_url_stays_as_it_is(
    web: Web, tenant: Account, site: Site, settings: Any
) -> None:
    limit(settings, fetched_urls=0)
    assert submit(web, tenant, {"image": site.url()}).status_code == 202
    assert Job.objects.get().payload == {"image": site.url()}
    assert site.asked == []


def test_a_repeated_key_reads_the_url_once(web: Web, tenant: Account, site: Site) -> None:
    first = submit(web, tenant, {"image": site.url()}, **{"Idempotency-Key": "one"})
    again = submit(web, tenant, {"image": site.url()}, **{"Idempotency-Key": "one"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["job_id"] == again.json()["job_id"]
    assert again.headers["Idempotency-Replayed"] == "true"
    other = submit(web, tenant, {"image": site.url("/other.png")}, **{"Idempotency-Key": "one"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    assert site.asked == ["/cat.png"]


def test_a_submit_with_urls_costs_one_token(web: Web, tenant: Account, site: Site) -> None:
    tenant.tenant.submits_per_second, tenant.tenant.submit_burst = 0.001, 4
    tenant.tenant.save()
    job = {"model": "zimg", "payload": {"image": site.url()}}
    left = []
    for path, body in ((SUBMIT, job), (BATCH, {"jobs": [job, job]})):
        answer = post(web, tenant, body, path)
        assert answer.status_code == 202, answer.text
        left.append(answer.headers["RateLimit"].split(";")[1])
    assert left == ["r=3", "r=1"]


@pytest.mark.database
def test_a_batch_refuses_only_the_job_whose_url_fails(web: Web, tenant: Account, site: Site) -> None:
    def script(visit: Visit) -> None:
        if b"/missing" in visit.server.requests[-1]:
            visit.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            visit.answer(PNG)

    site.script = script
    urls = [site.url("/a.png"), site.url("/missing.png"), site.url("/a.png")]
    body = {"jobs": [{"model": "zimg", "payload": {"image": url}} for url in urls]}
    answer = post(web, tenant, body, BATCH, **{"Idempotency-Key": "batch"})
    items = answer.json()["jobs"]
    assert ["job_id" in item for item in items] == [True, False, True]
    assert "file_not_fetched" in json.dumps(items[1])
    assert "answers 404" in json.dumps(items[1])
    assert "/payload/image" in json.dumps(items[1])
    assert Artifact.objects.count() == 1
    assert Counter(site.asked) == {"/a.png": 1, "/missing.png": 1}
    again = post(web, tenant, body, BATCH, **{"Idempotency-Key": "batch"})
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(site.asked) == 2


def test_a_form_may_have_urls_too(web: Web, tenant: Account, site: Site) -> None:
    job = {"model": "zimg", "payload": {"image": site.url(), "more": [{"$file": "b"}]}}
    answer = requests.post(
        web.url + SUBMIT,
        files={"job": (None, json.dumps(job)), "b": ("b.png", PNG + b"b" * 400_000)},
        headers={"Authorization": f"Bearer {tenant.key}"},
        timeout=60,
    )
    assert answer.status_code == 202, answer.text
    assert sorted(Artifact.objects.values_list("bytes", flat=True)) == [len(PNG), len(PNG) + 400_000]
    assert site.asked == ["/cat.png"]


def test_a_rerun_reads_new_urls(web: Web, tenant: Account, site: Site) -> None:
    submit(web, tenant, {"image": site.url()})
    job = Job.objects.get()
    path = f"/api/v1/queue/jobs/{job.id}/rerun"
    answer = post(web, tenant, {"payload": {"image": site.url("/new.png")}}, path)
    assert answer.status_code == 202, answer.text
    assert Job.objects.exclude(id=job.id).get().payload == job.payload  # the same bytes
    assert site.asked == ["/cat.png", "/new.png"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://169.254.169.254/latest/meta-data", "DISPATCHER_FETCHED_URL_NETWORKS"),
        ("https://10.0.0.1/x.png", "DISPATCHER_FETCHED_URL_NETWORKS"),
        ("https://[::ffff:10.0.0.1]/x.png", "DISPATCHER_FETCHED_URL_NETWORKS"),
        ("https://[::ffff:169.254.169.254]/x.png", "DISPATCHER_FETCHED_URL_NETWORKS"),
        ("https://[64:ff9b::10.0.0.1]/x.png", "DISPATCHER_FETCHED_URL_NETWORKS"),
        ("https://0x0a000001/x.png", "DISPATCHER_FETCHED_URL_NETWORKS"),
        ("https://private.example.com/x.png", "DISPATCHER_FETCHED_URL_NETWORKS"),
        ("https://nowhere.example.com/x.png", "can't be reached"),
        ("https://user:secret@files.example.test/x.png", "credentials"),
        ("https://files.example.test/x.png#part", "fragment"),
        ("https://files.example.test:25/x.png", "port 25"),
        ("https://files.example.test:0/x.png", "names no host"),
        ("HTTPS://files.example.test:25/x.png", "port 25"),
    ],
)
def test_a_url_that_must_not_be_read_is_refused(
    web: Web, tenant: Account, names: dict[str, list[list[str]]], url: str, why: str
) -> None:
    names["private.example.com"] = [["10.1.2.3", "::ffff:192.168.0.1"]]
    answer = submit(web, tenant, {"image": url})
    assert refusal(answer) == (422, "file_not_fetched", "/payload/image"), answer.text
    assert why in answer.json()["detail"]
    assert "secret" not in answer.text
    assert_nothing_stored()


def test_a_gpu_server_is_not_read(
    web: Web, tenant: Account, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = guard._origins((f"https://127.0.0.1:{site.port}",))
    monkeypatch.setattr(fetched_urls, "refused_origins", lambda registry: refused)
    answer = submit(web, tenant, {"image": site.url()})
    assert refusal(answer) == (422, "file_not_fetched", "/payload/image")
    assert site.asked == []


def test_a_name_that_changes_its_address_is_read_at_the_checked_one(
    web: Web, tenant: Account, site: Site, names: dict[str, list[list[str]]]
) -> None:
    """A redirect resolves the name again, to a private address."""
    names[NAME] = [["127.0.0.1"], ["10.0.0.1"]]
    site.script = lambda visit: visit.send(
        f"HTTP/1.1 302 Found\r\nLocation: {site.url('/b')}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    answer = submit(web, tenant, {"image": site.url("/a")})
    assert refusal(answer) == (422, "file_not_fetched", "/payload/image")
    assert "must not read" in answer.json()["detail"]
    assert site.asked == ["/a"]
    assert_nothing_stored()


def raw(head: str, body: bytes = b"") -> Script:
    return lambda visit: visit.send(f"HTTP/1.1 {head}\r\n\r\n".encode() + body)


def dripping(visit: Visit) -> None:
    visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while not visit.server.hung_up.wait(0.05):
        visit.send(b".")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (raw("302 Found\r\nLocation: https://169.254.169.254/"), "must not read"),
        (raw("302 Found\r\nLocation: http://files.example.test/"), "https://"),
        (raw("302 Found\r\nLocation: /again\r\nContent-Length: 0"), "5 redirects"),
        (raw("200 OK\r\nContent-Length: 500", PNG), "before its last byte"),
        (raw("200 OK\r\nContent-Length: 50000000"), "DISPATCHER_FETCHED_URL_BYTES"),
        (raw("200 OK", bytes(1_100_000)), "DISPATCHER_FETCHED_URL_BYTES"),
        (raw("200 OK\r\nContent-Encoding: gzip", gzip.compress(bytes(10**7))), "Content-Encoding: gzip"),
        (raw("200 OK\r\nX: " + "y" * 100_000), "as a web server"),
        (raw("200 OK\r\nContent-Length: 20", b"<html>no image</html"), None),
        (dripping, "DISPATCHER_FETCHED_URL_SECONDS"),
        (lambda visit: visit.wait_for_hang_up(), "DISPATCHER_FETCHED_URL_SECONDS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_server_costs_its_own_submit(
    web: Web,
    tenant: Account,
    site: Site,
    settings: Any,
    *,
    script: Script,
    why: str | None,
) -> None:
    limit(settings, fetched_url_bytes=1_000_000, fetched_url_seconds=1.5)
    site.script = script
    answer = submit(web, tenant, {"image": site.url()})
    expected = "file_not_fetched" if why else "file_type_wrong"
    assert refusal(answer) == (422, expected, "/payload/image"), answer.text
    assert why is None or why in answer.json()["detail"]
    assert_nothing_stored()


def test_a_full_disk_is_not_the_servers_fault(
    web: Web, tenant: Account, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk(tempfile.SpooledTemporaryFile[bytes]):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(fetched_urls, "SpooledTemporaryFile", FullDisk)
        answer = submit(web, tenant, {"image": site.url()})
    assert refusal(answer) == (503, "artifact_store_unavailable", "/payload/image")
    assert answer.headers["Retry-After"] == "60"
    assert_nothing_stored()
    assert submit(web, tenant, {"image": site.url()}).status_code == 202


def test_a_certificate_of_another_name_is_refused(
    web: Web, tenant: Account, site: Site, names: dict[str, list[list[str]]]
) -> None:
    names["other.example.test"] = [["127.0.0.1"]]
    answer = submit(web, tenant, {"image": site.url(host="other.example.test")})
    assert refusal(answer) == (422, "file_not_fetched", "/payload/image")
    assert "certificate" in answer.json()["detail"]


def test_more_urls_than_allowed_are_refused(web: Web, tenant: Account, site: Site, settings: Any) -> None:
    limit(settings, fetched_urls=2)
    answer = submit(web, tenant, {"more": [site.url(f"/{at}.png") for at in range(3)]})
    assert refusal(answer) == (422, "file_not_fetched", "/payload/more/2")
    assert "DISPATCHER_FETCHED_URLS" in answer.json()["detail"]
    assert_nothing_stored()


def test_the_bytes_of_all_urls_of_a_request_are_bounded(
    web: Web, tenant: Account, site: Site, settings: Any
) -> None:
    limit(settings, fetched_url_bytes=300_000)
    site.script = lambda visit: visit.answer(PNG + bytes(200_000))
    assert submit(web, tenant, {"more": [site.url("/1.png")]}).status_code == 202
    Job.objects.all().delete()
    Artifact.objects.all().delete()
    answer = submit(web, tenant, {"more": [site.url("/1.png"), site.url("/2.png")]})
    assert refusal(answer)[:2] == (422, "file_not_fetched")
    assert "DISPATCHER_FETCHED_URL_BYTES" in answer.json()["detail"]
    assert_nothing_stored()


def test_a_job_that_the_checks_refuse_reads_no_url(web: Web, tenant: Account, site: Site) -> None:
    answer = submit(web, tenant, {"image": site.url(), "link": 5})
    assert (answer.status_code, answer.json()["code"]) == (422, "payload_invalid")
    assert site.asked == []


def test_hanging_urls_block_no_other_submit_and_tenants_have_shares(
    web: Web, tenant: Account, site: Site, settings: Any
) -> None:
    """More requests wait for URLs than there are threads; another tenant's URL has a turn."""
    limit(settings, fetched_url_seconds=60.0, url_fetches=4, url_fetches_per_tenant=3)
    other = account("other")
    release = threading.Event()

    def script(visit: Visit) -> None:
        if b"/slow" in visit.server.requests[-1]:
            release.wait(60)
        visit.answer(PNG)

    site.script = script
    with ThreadPoolExecutor(40) as threads:
        slow = [
            threads.submit(submit, web, tenant, {"image": site.url(f"/slow{at}.png")}) for at in range(24)
        ]
        try:
            until = time.monotonic() + 30
            while site.open < 3:
                assert time.monotonic() < until
                time.sleep(0.01)
            for _ in range(5):
                assert submit(web, tenant, {}).status_code == 202
            assert submit(web, other, {"image": site.url("/quick.png")}).status_code == 202
            assert not any(one.done() for one in slow)
            assert site.most_open <= 4
            assert sum("/slow" in path for path in site.asked) == 3
        finally:
            release.set()
        assert {one.result().status_code for one in slow} == {202}
    assert Job.objects.count() == 24 + 6


def test_a_client_that_leaves_ends_its_fetch(web: Web, tenant: Account, site: Site) -> None:
    site.script = lambda visit: visit.wait_for_hang_up()
    with pytest.raises(requests.Timeout):
        requests.post(
            web.url + SUBMIT,
            json={"model": "zimg", "payload": {"image": site.url()}},
            headers={"Authorization": f"Bearer {tenant.key}"},
            timeout=1.0,
        )
    assert site._server.hung_up.wait(10)
    assert_nothing_stored()
