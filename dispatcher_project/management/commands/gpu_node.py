from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dispatcher_project.cli.arguments import HIDDEN_OPTIONS
from foundation.program import page
from gpu_host.node.config import ConfigError, add_arguments
from gpu_host.node.registering import add_register_arguments
from gpu_host.node.serving import serve


class Command(BaseCommand):
    help = (
        f"Serve Python functions as a GPU server ({page('docs/reference/gpu_protocol.md')}). Ctrl-C waits "
        "for the runs, a second one ends them."
    )
    requires_system_checks = []
    suppressed_base_arguments = HIDDEN_OPTIONS

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_arguments(parser)
        add_register_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            serve(options, self._print)
        except ConfigError as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"{error}: choose another --port or --host") from error

    def _print(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
