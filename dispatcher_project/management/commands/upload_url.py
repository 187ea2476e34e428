from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from dispatcher_project.cli.command import TerminalCommand
from gpus.models import Server
from gpus.registry.audit import cli_actor
from gpus.registry.upload_url import renew_upload_url, upload_url


class Command(TerminalCommand):
    help = (
        "Show the address for the --upload-url of a Cog container, or renew its key: the old one is refused "
        "at once, and the container must be started again with the new one."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("server")
        parser.add_argument("--renew", action="store_true", help="make a new key")
        self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        name = options["server"]
        row = Server.objects.filter(name=name).first()
        if row is None:
            raise CommandError(f"there is no server {name}")
        url: str | None = upload_url(row)
        if options["renew"]:
            self.confirm(
                f"renew the upload key of {name}? Its container can't upload until it is started again",
                options,
            )
            url = renew_upload_url(name, by=cli_actor())
        self.report({"server": name, "upload_url": url}, str(url))
        return None
