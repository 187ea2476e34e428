"""The proxies of deploy/nginx and deploy/caddy, with a certificate of their own, in front of a web server."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dispatcher_project.supervisor.data_folder import ROOT

CADDYFILE = ROOT / "deploy/caddy/Caddyfile"
CADDY = shutil.which("caddy")
CONFIGURATION = ROOT / "deploy/nginx/dispatcher.conf"
FILES = ("/store/a/1/0?signature=x", "/api/v1/tasks/cog/key/film.mp4")
"""Paths of requests with bodies of any length."""
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
_MAIN = """
{user}
worker_processes 1;
worker_rlimit_nofile 4096;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/dispatcher.conf;
}}
"""


@dataclass(frozen=True)
class Proxy:
    tls_port: int
    plain_port: int
    certificate: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.tls_port}"

    def connect(self) -> ssl.SSLSocket:
        """HTTP/1.1 over TLS."""
        plain = socket.create_connection(("127.0.0.1", self.tls_port), timeout=60)
        return ssl.create_default_context(cafile=str(self.certificate)).wrap_socket(
            plain, server_hostname="127.0.0.1"
        )


def configuration(**replaced: str) -> str:
    """The file as it is, with other values of these directives."""
    text = CONFIGURATION.read_text()
    for name, value in replaced.items():
        text, count = re.subn(rf"(?m)^(\s*{name}) [^;]+;", rf"\1 {value};", text)
        assert count, f"{CONFIGURATION.name} has no {name}"
    return text


@contextmanager
def proxy(folder: Path, web_port: int, **replaced: str) -> Iterator[Proxy]:
    """replaced: directives with another value, such as shorter times."""
    assert NGINX
    certificate, key = _make_certificate(folder)
    plain, tls = _free_port(), _free_port()
    text = configuration(ssl_certificate=str(certificate), ssl_certificate_key=str(key), **replaced)
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{web_port}")
    text = re.sub(r"(?m)^    listen \[::\].*\n", "", text)
    text = text.replace("listen 80;", f"listen 127.0.0.1:{plain};")
    text = text.replace("listen 443 ", f"listen 127.0.0.1:{tls} ")
    (folder / "dispatcher.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(_MAIN.format(folder=folder, user=user))
    process = subprocess.Popen(
        [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"],
        stderr=subprocess.PIPE,
    )
    try:
        _wait_for_port(tls, process)
        yield Proxy(tls, plain, certificate)
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def caddy(folder: Path, web_port: int) -> Iterator[Proxy]:
    """Caddy as its file has it, but for addresses, certificate and administration."""
    assert CADDY
    certificate, key = _make_certificate(folder)
    plain, tls = _free_port(), _free_port()
    text = CADDYFILE.read_text()
    ours = f"{{\n\tadmin off\n\thttp_port {plain}\n\thttps_port {tls}\n\tauto_https disable_certs\n"
    for old, new in (
        ("{\n", ours),
        ("dispatcher.example.com {\n", f"https://127.0.0.1:{tls} {{\n\ttls {certificate} {key}\n"),
        ("127.0.0.1:8000", f"127.0.0.1:{web_port}"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "Caddyfile").write_text(text)
    process = subprocess.Popen(
        [CADDY, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"],
        env={**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "HOME": str(folder)},
        stderr=subprocess.PIPE,
    )
    try:
        _wait_for_port(tls, process)
        yield Proxy(tls, plain, certificate)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < until
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "of a test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(made.public_bytes(pem))
    plain = serialization.NoEncryption()
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(text)
    return folder / "certificate.pem", folder / "key.pem"


async def mirror(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the address, scheme, headers and length of the request as JSON."""
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    request = {"client": scope["client"][0], "scheme": scope["scheme"], "headers": headers, "length": length}
    content = json.dumps(request).encode()
    lines = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": lines})
    await send({"type": "http.response.body", "body": content, "more_body": False})
