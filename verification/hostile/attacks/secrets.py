"""Attacks that read secrets: keys, tokens, addresses, files."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation.program import OWN_COMMAND
from verification.hostile.attacks.base import (
    ANY_CLIENT,
    GPU_SERVER,
    LOCAL_USER,
    MODEL_AUTHOR,
    Attack,
    wait_until,
)
from verification.hostile.attacks.sign_in import log_in
from verification.hostile.gpu import CraftedReply, ReceivedRequest, json_reply
from verification.hostile.wire import ask
from verification.proving.children import Child

if TYPE_CHECKING:
    from verification.hostile.environment import Environment

_OTHER_USER = "nobody"
"""The user of model processes if root runs the trial."""
_OVER = ("completed", "failed", "cancelled")


def finished_job(env: Environment, job_id: str, seconds: float = 15.0) -> Any:
    """Return the job as its tenant reads it, once it has ended, or after `seconds`."""
    wait_until(lambda: env.job(job_id).said.get("status") in _OVER, seconds)
    return env.job(job_id)


class Metrics(Attack):
    id, title, attacker, seconds = "s19", "/metrics without a key", ANY_CLIENT, 1.0

    def play(self, env: Environment, until: float) -> None:
        answer = self.ask(env, "GET", "/metrics", key="")
        self.must(env.prefix.encode() not in answer.body, "it names servers and models without a key")


class OpenFolder(Attack):
    id, title, attacker, seconds = "s18", "the data folder of up, made with mode 0755 before", LOCAL_USER, 1.0
    needs_processes = True

    def play(self, env: Environment, until: float) -> None:
        mode = stat.S_IMODE(env.data_dir.stat().st_mode)
        self.figures["mode"] = oct(mode)
        self.must(mode & 0o077 == 0, f"others may look into it (mode {oct(mode)})")


class LogLines(Attack):
    id, title, attacker, seconds = (
        "s16",
        "escape sequences in a User-Agent and a forged X-Forwarded-For",
        ANY_CLIENT,
        2.0,
    )
    needs_processes = True

    def play(self, env: Environment, until: float) -> None:
        for agent in ("\x1b[2Jplanted-agent", "planted\x9b31m", "planted\u202e".encode().decode("latin-1")):
            headers = {
                "User-Agent": agent,
                "X-Forwarded-For": "203.0.113.77",
                "X-Request-ID": "\x1b]0;planted\x07",
            }
            self.ask(env, "GET", "/api/v1/queue/jobs/none", headers=headers)
            self.ask(env, "GET", "/admin/nowhere", headers=headers)

    def check(self, env: Environment) -> None:
        for name, text in env.logs().items():
            lines = [line for line in text.splitlines() if "planted" in line]
            self.must(
                not any("\x1b[2J" in line or "\x1b]0" in line for line in lines), f"{name} has raw escapes"
            )
            self.must("203.0.113.77" not in text, f"{name} names a forged address")


class Tracebacks(Attack):
    id, title = "s13", "tracebacks of model code and addresses of GPU servers in a tenant's answers"
    seconds = 10.0

    def prepare(self, env: Environment) -> None:
        def behave(asked: ReceivedRequest) -> CraftedReply | None:
            if asked.method != "POST":
                return None
            text = f'File "/srv/planted-path/model.py", line 3, in run: no way to http://10.11.12.13:{0}/planted-url'
            return json_reply({"status": "failed", "error": text, "traceback": f"Traceback: {text}"})

        self.model, self.server = env.hostile_server("traces", behave, max_retries=0)
        self.gone, closed = env.hostile_server("gone", lambda asked: None, max_retries=1)
        self.port = closed.port
        closed.close()

    def play(self, env: Environment, until: float) -> None:
        for model in (self.model, self.gone):
            said = self.submit(env, {"model": model, "payload": {}}).said
            finished_job(env, said.get("job_id", ""), 4.0)
            for path in ("", "/explain"):
                body = env.job(f"{said.get('job_id', '')}{path}").body
                for word in (b"planted-path", b"planted-url", b"10.11.12.13", f":{self.port}".encode()):
                    self.must(
                        word not in body,
                        f"a tenant reads {word.decode()} of a GPU server in {path or 'its job'}",
                    )

    def end(self, env: Environment) -> None:
        env.end_model("traces")
        env.end_model("gone")


class DeepResults(Attack):
    id, title, attacker = "s12", "results nested 500 and 960 levels deep", GPU_SERVER
    seconds = 10.0

    def prepare(self, env: Environment) -> None:
        depths = iter((60, 500, 960, 5000) * 20)

        def behave(asked: ReceivedRequest) -> CraftedReply | None:
            if asked.method != "POST":
                return None
            depth = next(depths)
            return CraftedReply((b'{"status":"success","result":' + b"[" * depth + b"]" * depth + b"}",))

        self.model, _ = env.hostile_server("deep", behave, max_retries=0, slots=1)

    def play(self, env: Environment, until: float) -> None:
        ids = []
        for _ in range(4):
            said = self.submit(env, {"model": self.model, "payload": {}}).said
            ids.append(said.get("job_id", ""))
            finished_job(env, ids[-1], 5.0)
        cookie = admin_cookie(env)
        for job_id in ids:
            answer = self.note(env.job(job_id), "GET a job with a deep result")
            self.must(answer.status == 200, f"its job was answered {answer.label}")
            if cookie:
                page = ask(env.url, "GET", f"/admin/jobs/job/{job_id}/change/", headers={"Cookie": cookie})
                self.note(page, "GET its admin page")
        self.figures["admin pages"] = "read" if cookie else "not read"

    def end(self, env: Environment) -> None:
        env.end_model("deep")


def admin_cookie(env: Environment) -> str:
    """Return a session cookie of the admin; empty if its password is not known."""
    if not env.sees_processes:
        return ""
    facts = json.loads((env.data_dir / "up.json").read_text())
    password = facts.get("admin_password")
    return log_in(env.url, facts["admin_user"], password)[1] if password else ""


class LatePushes(Attack):
    id, title, attacker = "s14", "20 MB pushed with the tokens of attempts that are over", GPU_SERVER
    seconds = 12.0

    def prepare(self, env: Environment) -> None:
        def behave(asked: ReceivedRequest) -> CraftedReply | None:
            return json_reply({"status": "success", "result": 1}) if asked.method == "POST" else None

        self.model, self.server = env.hostile_server("push", behave, max_response_bytes=1000)

    def play(self, env: Environment, until: float) -> None:
        body = b'{"status":"success","result":"' + b"x" * 20_000_000 + b'"}'
        for _ in range(4):
            said = self.submit(env, {"model": self.model, "payload": {}}).said
            finished_job(env, said.get("job_id", ""), 4.0)
        runs = [one for one in self.server.requests if one.method == "POST"]
        self.must(bool(runs), "no run began")
        for run in runs:
            sent = {
                "Content-Type": "application/json",
                "X-Callback-Token": run.headers.get("x-callback-token", ""),
            }
            path = f"/api/v1/tasks/callback/{run.headers['x-job-id']}"
            answer = self.ask(env, "POST", path, key="", body=body, headers=sent)
            self.must(answer.status >= 400, f"20 MB for an attempt that is over were answered {answer.label}")

    def end(self, env: Environment) -> None:
        env.end_model("push")


class LoggedTokens(Attack):
    id, title, attacker, seconds = "X2", "an attempt's token in the URL of a push", GPU_SERVER, 3.0
    needs_processes = True

    def play(self, env: Environment, until: float) -> None:
        for _ in range(3):
            self.ask(env, "POST", "/api/v1/tasks/callback/none?token=planted-token", key="", body={})
        self.ask(env, "GET", "/admin/?token=planted-token", key="")

    def check(self, env: Environment) -> None:
        for name, text in env.logs().items():
            lines = [line for line in text.splitlines() if "token=planted-token" in line.lower()]
            self.must(not lines, f"{name} holds the token")


class NodeFence(Attack):
    id, title = "s10", "a fence of 30 digits, and runs by strangers, at a node's own port"
    attacker, seconds = "a foreign host in the network of the node", 4.0

    def play(self, env: Environment, until: float) -> None:
        node = f"http://127.0.0.1:{env.gpu.port}"
        for slot in range(8):
            headers = {
                "X-Source": "dispatcher", "X-Slot": f"{env.shared_model}/{slot}", "X-Fence": "9" * 30,
                "X-Job-Id": f"forged-{slot}", "X-Attempt": f"forged-{slot}",
            }  # fmt: skip
            body = {"number": 0, "seconds": 0.0}
            answer = ask(node, "POST", f"/{env.shared_model}/run", body=body, headers=headers)
            self.answers[f"node {answer.label}"] += 1
            self.must(answer.status >= 400, f"the node took a fence of 30 digits: {answer.label}")
        time.sleep(max(0.0, until - time.monotonic()))

    def end(self, env: Environment) -> None:
        """Restart the node, so that later attacks meet no fences of this one."""
        if self.wrongs() and env.gpu.child is not None:
            env.restart_gpu()


class ModelCode(Attack):
    id, title, attacker = "s17", "model code on a pinned worker that looks for secrets", MODEL_AUTHOR
    seconds = 25.0
    needs_processes = True

    def skip(self, env: Environment) -> str:
        shut = _shut_to_others() if os.getuid() == 0 else ""
        return (
            f"{shut} is shut to the user {_OTHER_USER}, as whom models would run"
            if shut
            else super().skip(env)
        )

    def prepare(self, env: Environment) -> None:
        self.name = f"{env.prefix}-pinned"
        ready = env.report / "pinned.ready"
        command = [
            *OWN_COMMAND, "gpu_worker", "--gpu", "none", "--name", self.name, "--slots", "1",
            "--models", "verification.hostile.model", "--budget-mb", "500", "--ready-file", str(ready),
            *(("--model-user", _OTHER_USER) if os.getuid() == 0 else ()),
        ]  # fmt: skip
        environment = {**env.settings(), "PLANTED_DATABASE_URL": "postgresql://planted-secret@nowhere/x"}
        self.worker: Child = env.children.start("pinned", *command, environment=environment)
        wait_until(lambda: ready.exists() or not self.worker.is_running(), 60.0)

    def play(self, env: Environment, until: float) -> None:
        where = {"folder": str(env.data_dir)}
        accepted = self.submit(env, {"model": "hostile-look", "payload": where}).said
        answer = finished_job(env, accepted.get("job_id", ""), max(1.0, until - time.monotonic()))
        result = answer.said.get("result")
        if not isinstance(result, dict):
            self.wrong(f"the model did not run: {answer.body[:300]!r}")
            return
        self.figures["model runs as"] = result["uid"]
        self.figures["read"] = ", ".join(result["read"]) or "nothing"
        for name in result["read"]:
            if result["uid"] != os.getuid() or "environ" in name:  # the same user may read files
                self.wrong(f"model code reads secrets in {name}")

    def end(self, env: Environment) -> None:
        self.worker.stop(20.0)
        env.operator("DELETE", f"/admin/servers/{self.name}")


def _shut_to_others() -> str:
    """Return the first folder above Python, or above this program, that only its owner may enter."""
    files = (Path(sys.executable), Path(sys.executable).resolve(), Path(__file__))
    folders = [folder for file in files for folder in reversed(file.parents)]
    return next((str(folder) for folder in folders if not folder.stat().st_mode & stat.S_IXOTH), "")


ATTACKS = (
    Metrics,
    OpenFolder,
    LogLines,
    LoggedTokens,
    Tracebacks,
    DeepResults,
    LatePushes,
    NodeFence,
    ModelCode,
)
