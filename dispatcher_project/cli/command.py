"""The base class of the operators' commands: `--json`, `--data-dir`, errors in one line, Ctrl-C."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, InterfaceError

from dispatcher_project.cli.arguments import HIDDEN_OPTIONS
from dispatcher_project.cli.screen import harmless, plain, takes_colours, text_of
from foundation.program import command_line
from gpus.errors import LeasingUnavailable
from gpus.registry.model_fields import RegistryRefused
from jobs.domain.errors import Refused
from jobs.models import ApiKey, Tenant

if TYPE_CHECKING:
    from rich.console import RenderableType

WRONG, INTERRUPTED = 2, 130
"""Exit statuses: the command could not be carried out (argparse's, for wrong arguments); after Ctrl-C, as in
shells. 1 and 3 describe the outcome of a command that was."""


class _Error(CommandError):
    """Named `error`, because Django prints the class' name in front of the text."""


_Error.__name__ = "error"


class TerminalCommand(BaseCommand):
    """A subclass' `act` does the work and returns the exit status; None is 0."""

    requires_system_checks = []  # they would load every view and page
    suppressed_base_arguments = HIDDEN_OPTIONS - {"--no-color"}

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
        parser.add_argument(
            "--data-dir",
            type=Path,
            help="data folder of the running `up` to work with (default: var, if one runs there)",
        )  # `run` in cli/main.py reads it, before the settings are loaded
        self.add_options(parser)

    def add_options(self, parser: CommandParser) -> None:
        """Add the command's own options."""

    def act(self, options: dict[str, Any]) -> int | None:
        raise NotImplementedError

    def handle(self, *args: Any, **options: Any) -> None:
        root = logging.getLogger()
        level = root.level
        self.out = cast("TextIO", self.stdout)  # it delegates unknown attributes
        self.coloured = options["force_color"] or (not options["no_color"] and takes_colours(self.out))
        self.as_json = bool(options["json"])
        try:
            if options["verbosity"] < 2:  # services log for log files
                root.setLevel(logging.ERROR)
            status = one_line(lambda: self.act(options))
        except CommandError as error:
            if not takes_colours(cast("TextIO", self.stderr)):
                self.stderr.style_func = None  # Django ignores NO_COLOR
            raise _Error(str(error), returncode=WRONG) from None
        except KeyboardInterrupt:
            self.stderr.write("")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # `… | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 0
        finally:
            if not getattr(self, "_called_from_command_line", False):
                root.setLevel(level)  # `call_command` restores the caller's level
        if status:
            sys.exit(status)

    def print(self, *lines: str) -> None:
        for line in lines:
            self.stdout.write(harmless(line))
        self.stdout.flush()

    def show(self, *parts: RenderableType) -> None:
        """Print tables and coloured lines, as `dispatcher_project.cli.screen` makes them."""
        self.stdout.write(text_of(parts, self.out, coloured=self.coloured))
        self.stdout.flush()

    def add_yes(self, parser: CommandParser) -> None:
        """Add the option of commands that ask for confirmation."""
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    def confirm(self, question: str, options: dict[str, Any]) -> None:
        """Return after a yes. Raises CommandError after a no, or if stdin is not a terminal."""
        if options["yes"]:
            return
        if not sys.stdin.isatty():
            raise CommandError(f"{question} Confirm with --yes")
        self.stderr.write(f"{question} [y/N] ", ending="")
        self.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("not confirmed: nothing was changed")

    def report(self, document: Any, *lines: str) -> None:
        """Print the document with --json, else the lines."""
        if self.as_json:
            self.print_json(document)
        else:
            self.print(*lines)

    def print_json(self, value: Any) -> None:
        self.print(as_json(value))


def as_json(value: Any) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False)


def one_line(act: Callable[[], int | None]) -> int | None:
    """Call `act`; expected failures become a CommandError of one line that says what to do."""
    try:
        return act()
    except LeasingUnavailable as error:
        raise CommandError(f"{about_redis(error)}; `doctor` shows more") from None
    except (DatabaseError, InterfaceError) as error:
        raise CommandError(about_database(error)) from None
    except (Refused, RegistryRefused) as error:
        raise CommandError(plain(error)) from None
    except ImproperlyConfigured as error:
        raise CommandError(plain(error)) from None


def about_redis(error: Exception) -> str:
    return f"Redis does not answer: {plain(error, 200)}; check REDIS_URL and that Redis runs"


def about_database(error: Exception) -> str:
    text = plain(error, 200)
    if "no such table" in text or "does not exist" in text:
        return f"the database lacks tables ({text}): run `{command_line('migrate')}`"
    return f"the database does not answer ({text}): check DATABASE_URL and that the database runs"


def positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


OPERATORS = "operator"
"""The name of the tenant that `up` creates for the operator."""


def tenant_named(name: str | None) -> Tenant:
    """The tenant of that name; without one, the operator's, the only one, or the only one with an operator's
    key. Raises CommandError."""
    if name is not None and (found := Tenant.objects.filter(name=name).first()) is not None:
        return found
    names = list(Tenant.objects.values_list("name", flat=True))
    if not names:
        raise CommandError(
            f"there is no tenant yet: create one with `{command_line('create_key --tenant NAME')}`"
        )
    if name is not None:
        raise CommandError(f"no tenant is named {name}; there are {', '.join(names)}")
    if OPERATORS in names or len(names) == 1:
        return Tenant.objects.get(name=OPERATORS if OPERATORS in names else names[0])
    operators = Tenant.objects.filter(api_keys__kind=ApiKey.Kind.OPERATOR, api_keys__revoked=False).distinct()
    only = list(operators[:2])
    if len(only) != 1:
        raise CommandError(f"name a tenant with --tenant: {', '.join(names)}")
    return only[0]
