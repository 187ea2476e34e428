from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_client.workflow_drawing import mermaid
from dispatcher_project.cli.command import TerminalCommand, positive_seconds, tenant_named
from dispatcher_project.cli.owners import named_row, owner_of_new
from dispatcher_project.cli.runs import end_status, find_run, run_document
from dispatcher_project.cli.screen import age, plain, table
from dispatcher_project.cli.workflow_files import is_file, read_definition_file, text_of_problem
from dispatcher_project.management.commands.submit import read_payload
from foundation.http_api.problems import Problem
from foundation.program import command_line
from foundation.texts import counted
from gpus.registry.audit import cli_actor
from jobs.api.submit import keyed_request
from jobs.domain.errors import Refused
from workflows.api.definitions import version_json
from workflows.definition.limits import definition_limits
from workflows.definition.queue_workflows import NotConvertible, convert, pipeline_names
from workflows.definition.read import read_definition
from workflows.domain.plan import Plan
from workflows.domain.states import RunState
from workflows.models import Run, Version, Workflow
from workflows.operations.definitions import check_definition, doubts, put_definition, stored_workflows
from workflows.operations.inline import start_inline_run
from workflows.operations.start import RunOptions, StartedRun, start_run

_LOOK_SECONDS = 0.5


class Command(TerminalCommand):
    help = (
        "Workflows: `put FILE [NAME]` stores a definition, `check FILE` only checks it, `run NAME|FILE "
        "[INPUTS]` starts a run (of a FILE without storing it under its name), `list`, `show NAME`, "
        "`versions NAME`, `diff NAME [FROM [TO]]`, `mermaid FILE|NAME` draws it, `convert FILE` reads a "
        "definition of queue_workflows. A FILE is JSON or YAML, or module:name of a Workflow in Python. Exit "
        "status of `run --wait`: 1 the run failed or was cancelled, 3 it has not ended."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=sorted(self._actions()), help="what to do")
        parser.add_argument("words", nargs="*", metavar="FILE|NAME", help="what to do it with")
        parser.add_argument(
            "--tenant",
            help="whose workflow (default: the only tenant that has one of that name, else operator)",
        )
        parser.add_argument("--version", type=int, metavar="N", dest="number", help="default: the newest")
        parser.add_argument("--priority", type=int, choices=range(1, 10), default=5, help="of a run: 1 first")
        parser.add_argument("--tag", action="append", dest="tags", help="of a run; may be repeated")
        parser.add_argument("--callback-url", metavar="URL", help="of a run: gets a signed POST at its end")
        parser.add_argument(
            "--idempotency-key",
            metavar="KEY",
            help="of a run: the same command with the same key returns the same run",
        )
        parser.add_argument(
            "--deadline-seconds", type=positive_seconds, help="a run fails if it has not ended by then"
        )
        parser.add_argument(
            "--wait", nargs="?", type=positive_seconds, const=float("inf"), metavar="SECONDS",
            help="with run: wait for the end, SECONDS at most",
        )  # fmt: skip
        parser.add_argument(
            "--pipelines", metavar="FOLDER", type=Path,
            help="with convert: where NAME.schema.json are (default: beside the file, and ../pipelines)",
        )  # fmt: skip

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Let `--version` be this command's: Django's shows its own."""
        return super().create_parser(prog_name, subcommand, conflict_handler="resolve", **kwargs)

    def _actions(self) -> dict[str, Callable[[list[str], dict[str, Any]], int | None]]:
        return {
            "put": self._put,
            "check": self._check,
            "run": self._run,
            "list": self._list,
            "show": self._show,
            "versions": self._versions,
            "diff": self._diff,
            "convert": self._convert,
            "mermaid": self._mermaid,
        }

    def act(self, options: dict[str, Any]) -> int | None:
        return self._actions()[options["action"]](options["words"], options)

    # -- definitions ---------------------------------------------------------------------------------------

    def _put(self, words: list[str], options: dict[str, Any]) -> int | None:
        source, name = _words(words, "put FILE [NAME]", least=1, most=2)
        definition = read_definition_file(source)
        name = name or _name_in(definition) or Path(source).stem
        tenant = owner_of_new(options["tenant"], (Workflow, name))
        ports = jobs.ports.production_ports()
        try:
            stored = put_definition(tenant.pk, name, definition, ports=ports, by=cli_actor())
        except Problem as problem:
            raise CommandError(text_of_problem(source, problem)) from None
        version = stored.version
        warnings = doubts(tenant.pk, read_definition(definition), ports=ports)
        document = {**version_json(version), "tenant": tenant.name, "new": stored.is_new}
        said = f"{name} v{version.number}" + ("" if stored.is_new else " has this content already")
        self.report({**document, "warnings": _listed(warnings)}, f"{said}, of {tenant.name}")
        self._warn(warnings, tenant.name)
        return None

    def _check(self, words: list[str], options: dict[str, Any]) -> int | None:
        source, _ = _words(words, "check FILE", least=1, most=1)
        definition = read_definition_file(source)
        name = _name_in(definition) or Path(source).stem
        tenant = owner_of_new(options["tenant"], (Workflow, name))
        ports = jobs.ports.production_ports()
        try:
            plan = check_definition(tenant.pk, name, definition, ports=ports)
        except Problem as problem:
            raise CommandError(text_of_problem(source, problem)) from None
        warnings = doubts(tenant.pk, plan, ports=ports)
        nodes = [node.key for node in plan.all_nodes]
        document = {"nodes": nodes, "warnings": _listed(warnings)}
        self.report(document, f"ok: {counted(len(nodes), 'node')}")
        self._warn(warnings, tenant.name)
        return None

    def _warn(self, warnings: Mapping[str, str], tenant: str) -> None:
        """Print texts by JSON pointer as warnings."""
        if not self.as_json:
            for pointer, text in warnings.items():
                self.stderr.write(plain(f"warning: {pointer}: {text} (tenant {tenant})"))

    def _list(self, words: list[str], options: dict[str, Any]) -> int | None:
        _words(words, "list", least=0, most=0)
        tenant_id = tenant_named(options["tenant"]).pk if options["tenant"] else None
        rows = stored_workflows(tenant_id).select_related("tenant")
        rows = rows.order_by("name", "tenant__name")
        found = [{"name": row.name, "latest": row.latest, "tenant": row.tenant.name} for row in rows]
        if self.as_json:
            self.print_json({"results": found})
        elif found:
            cells = [(row.name, f"v{row.latest}", row.tenant.name) for row in rows]
            self.show(table(("workflow", "newest", "tenant"), cells))
        else:
            self.print("no workflows; `workflow put FILE` stores one")
        return None

    def _show(self, words: list[str], options: dict[str, Any]) -> int | None:
        name, _ = _words(words, "show NAME", least=1, most=1)
        version = _version(_workflow(name, options), options["number"])
        self.report(version_json(version), _pretty(version.spec))
        return None

    def _versions(self, words: list[str], options: dict[str, Any]) -> int | None:
        name, _ = _words(words, "versions NAME", least=1, most=1)
        rows = _workflow(name, options).versions.defer("spec").order_by("-number")
        now = jobs.ports.production_ports().clock.now()
        if self.as_json:
            found = [
                {"version": row.number, "sha256": row.sha256, "created_at": row.created_at} for row in rows
            ]
            self.print_json({"results": found})
        else:
            cells = [
                (f"v{row.number}", age((now - row.created_at).total_seconds()), row.sha256[:12])
                for row in rows
            ]
            self.show(table(("version", "age", "sha256"), cells))
        return None

    def _diff(self, words: list[str], options: dict[str, Any]) -> int | None:
        if not 1 <= len(words) <= 3 or not all(word.lstrip("v").isdigit() for word in words[1:]):
            raise CommandError("usage: workflow diff NAME [FROM [TO]], with numbers of versions")
        workflow = _workflow(words[0], options)
        numbers = [int(word.lstrip("v")) for word in words[1:]]
        to = numbers[1] if len(numbers) > 1 else workflow.latest
        first = numbers[0] if numbers else to - 1
        if first < 1:
            raise CommandError(f"{workflow.name} has one version; nothing to compare it with")
        before, after = _version(workflow, first), _version(workflow, to)
        # sorted: the order of keys is no part of the content
        texts = [_pretty(one.spec, sort_keys=True).splitlines() for one in (before, after)]
        first_name, to_name = f"{workflow.name} v{first}", f"{workflow.name} v{to}"
        lines = list(difflib.unified_diff(texts[0], texts[1], first_name, to_name, lineterm=""))
        self.report({"from": first, "to": to, "diff": lines}, *(lines or ["no difference"]))
        return None

    def _mermaid(self, words: list[str], options: dict[str, Any]) -> int | None:
        source, _ = _words(words, "mermaid FILE|NAME", least=1, most=1)
        if is_file(source):
            definition = read_definition_file(source)
        else:
            definition = _version(_workflow(source, options), options["number"]).spec
        try:
            plan = read_definition(definition)
        except Problem as problem:
            raise CommandError(text_of_problem(source, problem)) from None
        text = mermaid(definition, _needs(plan))
        self.report({"mermaid": text}, text.rstrip())
        return None

    def _convert(self, words: list[str], options: dict[str, Any]) -> int | None:
        source, _ = _words(words, "convert FILE", least=1, most=1)
        document = read_definition_file(source)
        try:
            if not isinstance(document, dict):
                raise NotConvertible("it is not a JSON object")
            names = pipeline_names(document) if "steps" in document else []
            found = convert(document, _pipelines(names, Path(source).parent, options["pipelines"]))
        except NotConvertible as error:
            raise CommandError(f"{source}: {plain(error)}") from None
        notes = [{"place": note.place, "text": note.text} for note in found.notes]
        try:
            read_definition(found.definition, limits=definition_limits())
        except Problem as problem:
            notes += [{"place": one.pointer, "text": one.detail} for one in problem.errors]
        if self.as_json:
            self.print_json({"definition": found.definition, "notes": notes})
            return None
        self.print(_pretty(found.definition))
        for note in notes:
            self.stderr.write(plain(f"{note['place'] or source}: {note['text']}"))
        return None

    # -- runs ----------------------------------------------------------------------------------------------

    def _run(self, words: list[str], options: dict[str, Any]) -> int | None:
        source, given = _words(words, "run NAME|FILE [INPUTS]", least=1, most=2)
        inputs = None if given is None else read_payload(given)
        try:
            started = self._start(source, inputs, options)
        except Problem as problem:
            raise CommandError(text_of_problem(source, problem)) from None
        except Refused as refused:
            if refused.pointer is None:
                raise
            raise CommandError(plain(f"{source}: {refused.pointer}: {refused}")) from None
        run = started.run
        if options["wait"] is None:
            state = "was started before" if started.replayed else "running"
            said = f"{run.id} {state}; `{command_line(f'run {run.id} --follow')}` shows it"
            self.report(run_document(find_run(run.id)), said)
            return None
        ended = wait_for_run(run.id, options["wait"])
        if self.as_json:
            self.print_json(run_document(ended))
        elif ended.state == RunState.COMPLETED:
            self.print(_pretty(ended.output))
        else:
            why = f": {plain(ended.error_code)}: {plain(ended.error_message)}" if ended.error_code else ""
            keys = ", ".join(run_document(ended)["waiting_for"])
            waits = f", waits for {plain(keys, 100)}" if keys else ""
            self.print(
                f"{ended.id} {ended.state}{why}{waits}; `{command_line(f'run {ended.id}')}` shows more"
            )
        return end_status(ended)

    def _start(self, source: str, inputs: Any, options: dict[str, Any]) -> StartedRun:
        """Start a run of a stored workflow, or of the definition in a file."""
        given: RunOptions = {
            "priority": options["priority"],
            "deadline_seconds": options["deadline_seconds"],
            "tags": options["tags"] or (),
            "callback_url": options["callback_url"],
        }
        key, ports, by = options["idempotency_key"], jobs.ports.production_ports(), cli_actor()
        if not is_file(source):
            workflow, number = _workflow(source, options), options["number"]
            return start_run(
                workflow.tenant_id,
                workflow.name,
                inputs,
                number=number,
                idempotency_key=keyed_request(key, [workflow.name, number, inputs, given]),
                ports=ports,
                by=by,
                **given,
            )
        if options["number"] is not None:
            raise CommandError("--version is of a stored workflow; a file is one definition")
        definition = read_definition_file(source)
        tenant = owner_of_new(options["tenant"], (Workflow, _name_in(definition) or Path(source).stem))
        return start_inline_run(
            tenant.pk,
            definition,
            inputs,
            idempotency_key=keyed_request(key, [definition, inputs, given]),
            ports=ports,
            by=by,
            **given,
        )


def wait_for_run(run_id: str, seconds: float) -> Run:
    """Return the run at its end, or as it is after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        run = find_run(run_id)
        if run.state != RunState.RUNNING or time.monotonic() >= until:
            return run
        time.sleep(min(_LOOK_SECONDS, max(0.0, until - time.monotonic())))


def _words(words: list[str], usage: str, *, least: int, most: int) -> tuple[str, str | None]:
    if not least <= len(words) <= most:
        raise CommandError(f"usage: workflow {usage}")
    return (words[0] if words else ""), (words[1] if len(words) > 1 else None)


def _name_in(definition: Any) -> str | None:
    name = definition.get("name") if isinstance(definition, dict) else None
    return name if isinstance(name, str) else None


def _listed(warnings: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"pointer": pointer, "text": text} for pointer, text in warnings.items()]


def _workflow(name: str, options: dict[str, Any]) -> Workflow:
    return named_row(Workflow, name, options["tenant"])


def _version(workflow: Workflow, number: int | None) -> Version:
    wanted = number or workflow.latest
    found = workflow.versions.select_related("workflow").filter(number=wanted).first()
    if found is None:
        raise CommandError(f"{workflow.name} has no version {wanted}; the newest is {workflow.latest}")
    return found


def _needs(plan: Plan) -> dict[str, frozenset[str]]:
    return {key: node.needs for key, node in plan.nodes.items()}


def _pretty(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=sort_keys)


def _pipelines(names: list[str], beside: Path, folder: Path | None) -> dict[str, Any]:
    """Return the schemas of pipelines, read from files. Raises NotConvertible."""
    folders = [folder] if folder is not None else [beside, beside.parent / "pipelines"]
    found = {}
    for name in names:
        paths = [one / f"{name}{end}" for one in folders for end in (".schema.json", ".json")]
        path = next((one for one in paths if one.is_file()), None)
        if path is None:
            raise NotConvertible(f"the schema of the pipeline {name} is missing: give --pipelines FOLDER")
        found[name] = read_definition_file(str(path))
        if not isinstance(found[name], dict):
            raise NotConvertible(f"{path} is not a JSON object")
    return found
