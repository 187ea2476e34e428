"""A node registers itself: it sends its models, slots and address until the dispatcher answers."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import urllib.error
import urllib.request
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from gpu_host.node.config import ConfigError, NodeConfig, is_loopback
from gpu_host.node.server import Node

KEY_VARIABLE = "DISPATCHER_API_KEY"
SECONDS = 15.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
_ANSWER_BYTES = 64 * 1024
_NO_DISPATCHER = "its answer is none of a dispatcher's: is that its URL?"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """The dispatcher's URL and the fields with which a node registers.

    dispatcher: its URL. key: of an operator. server: the node's name there. address: URL of the node for the
    dispatcher, such as ``http://box-1:9000``."""

    dispatcher: str
    key: str
    server: str
    address: str


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that the key is sent only to the given address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


class Refused(Exception):
    """The dispatcher rejected the registration; the message says why."""


def add_register_arguments(parser: ArgumentParser) -> None:
    """Add the options of a registration to a command line."""
    group = parser.add_argument_group("registering")
    group.add_argument(
        "--register", metavar="URL", help="register the models at this dispatcher, as in http://box-0:8000"
    )
    group.add_argument(
        "--key-file", type=Path, help=f"an operator's API key is its first line (default: {KEY_VARIABLE})"
    )
    group.add_argument("--name", help="name of the node there (default: its host and port)")
    group.add_argument(
        "--address", metavar="URL", help="URL of the node for the dispatcher (default: its own)"
    )
    group.add_argument(
        "--as", dest="model", metavar="MODEL", help="the model's name there (default: its handler's)"
    )


def registration_from(options: Mapping[str, Any], config: NodeConfig, port: int) -> Registration | None:
    """Return the registration, or None without --register. port: of the node. Raises ConfigError."""
    if not options["register"]:
        return None
    dispatcher = _host_of(options["register"], "--register is the dispatcher's URL, as in http://box-0:8000")
    address = options["address"] or own_address(config.host, port, dispatcher)
    _host_of(address, "--address is the node's URL, as in http://box-1:9000")
    name = options["name"] or urlsplit(address).netloc.replace(":", "-").strip("[]")
    return Registration(options["register"].rstrip("/"), _key(options["key_file"]), name, address.rstrip("/"))


def _host_of(url: str, refusal: str) -> str:
    """The host of an http(s) URL without credentials, query and fragment. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not parts.hostname or not url.isprintable() or any(sign in url for sign in "@ ?#"):
        raise ConfigError(refusal)
    return parts.hostname


def own_address(host: str, port: int, dispatcher: str) -> str:
    """Return the URL of a node that listens at `host`; the machine's name replaces a wildcard address.

    Raises ConfigError for loopback if the dispatcher is on another machine."""
    if host in ("", "0.0.0.0", "::"):
        return f"http://{socket.gethostname()}:{port}"
    if is_loopback(host) and not is_loopback(dispatcher):
        raise ConfigError(f"{dispatcher} can't reach {host}: listen elsewhere (--host), or give --address")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _key(path: Path | None) -> str:
    try:
        key = (
            os.environ.get(KEY_VARIABLE, "") if path is None else path.read_text().partition("\n")[0].strip()
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key can't be read: {error}") from None
    if not key:
        raise ConfigError(f"--register needs an operator's API key: --key-file, or {KEY_VARIABLE}")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("the operator's API key has characters that no key has")
    return key


def bodies(
    registration: Registration, config: NodeConfig, models: list[str], alias: str | None
) -> list[dict[str, Any]]:
    """Return a request for each model. Runs are polled, so that their progress is visible.

    A handler without a name is called as its module, unless `alias` names it. Raises ConfigError."""
    if alias and len(models) > 1:
        raise ConfigError("--as names one model, but this node serves several with names of their own")
    alias = alias or config.module_name
    pool = {"pool": models[0]} if len(models) > 1 else {}  # models of one server share a pool
    return [
        {
            "model": model or alias,
            "server": registration.server,
            "endpoint": f"{registration.address}/{quote(model or alias, safe='')}",
            "slots": config.slots,
            "model_type": "async",
            "poll_endpoint_template": "/status/{id}",
            "cancel_endpoint_template": "/cancel/{job_id}",
            **pool,
            **({"headers": {"Authorization": f"Bearer {config.token}"}} if config.token else {}),
        }
        for model in models
    ]


def register(registration: Registration, body: Mapping[str, Any]) -> list[str]:
    """Register one model; return the dispatcher's warnings. Raises Refused; OSError without an answer."""
    request = urllib.request.Request(
        f"{registration.dispatcher}/api/v1/admin/register",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {registration.key}", "Content-Type": "application/json"},
    )
    try:
        said = _json_of(_send(request))
        return [_printable(one["detail"]) for one in said.get("warnings", ())]
    except HTTPException as error:
        raise OSError(f"its answer is no complete HTTP: {type(error).__name__}") from None
    except (LookupError, TypeError, AttributeError):
        raise Refused(_NO_DISPATCHER) from None


def _send(request: urllib.request.Request) -> bytes:
    """Return the answer's body. Raises Refused, OSError, HTTPException."""
    try:
        with _opener.open(request, timeout=SECONDS) as answer:
            body: bytes = answer.read(_ANSWER_BYTES)
            if answer.length and len(body) < _ANSWER_BYTES:
                raise OSError("its answer ended early")
            return body
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500 or error.code == 429:
                raise OSError(f"it answered {error.code}") from None
            raise Refused(_reason(error.code, error.read(_ANSWER_BYTES))) from None


def _json_of(body: bytes) -> Any:
    """Raises Refused."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(_NO_DISPATCHER) from None


def _reason(status: int, body: bytes) -> str:
    try:
        said = json.loads(body)
        return _printable(f"{status} {said['code']}: {said['detail']}")
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"it answered {status}"


def _printable(text: object) -> str:
    """Without characters that a terminal would interpret."""
    return "".join(one if one.isprintable() else "�" for one in str(text))


class Registering(threading.Thread):
    """Registers the models one after another, with retries until the dispatcher answers, then exits.

    say: receives a line for each model, with the reason if the dispatcher refuses it. first_pause_seconds:
    before the second try."""

    def __init__(
        self,
        registration: Registration,
        orders: list[dict[str, Any]],
        say: Callable[[str], object],
        *,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        super().__init__(name="register", daemon=True)
        self._registration, self._orders, self._say = registration, orders, say
        self._first_pause_seconds = first_pause_seconds
        self._stopped = threading.Event()

    def run(self) -> None:
        """Register all models."""
        for body in self._orders:
            pause = self._first_pause_seconds
            while not self._stopped.is_set():
                try:
                    warnings = register(self._registration, body)
                except Refused as refused:
                    self._say(f"{body['model']} is not registered: {refused}")
                    break
                except OSError as error:
                    log.warning(
                        "%s does not answer (%s); next try in %g s",
                        self._registration.dispatcher,
                        error,
                        pause,
                    )
                    self._stopped.wait(pause)
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                    continue
                self._say(
                    f"{body['model']} is registered as {body['server']} at {self._registration.dispatcher}"
                )
                for warning in warnings:
                    self._say(f"warning: {warning}")
                break

    def stop(self) -> None:
        self._stopped.set()


def start_registering(
    options: Mapping[str, Any], node: Node, say: Callable[[str], object]
) -> Registering | None:
    """Register in a thread; None without --register. node: started. Raises ConfigError."""
    registration = registration_from(options, node.config, node.port)
    if registration is None:
        return None
    found = Registering(registration, bodies(registration, node.config, node.models, options["model"]), say)
    found.start()
    return found
