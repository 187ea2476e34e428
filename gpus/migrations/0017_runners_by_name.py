from typing import Any

from django.db import migrations, models

import gpus.models.model_config


class WidenText(migrations.AlterField):
    """Lets a text be longer. PostgreSQL does that without rewriting the table; SQLite has no length to
    change, and is not made to rebuild the table for it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "sqlite":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """A longer text stays where it is: the release before has no runner of its name."""


class Migration(migrations.Migration):
    """A model's type is the name of an installed runner, which the database can't list."""

    dependencies = [
        ("gpus", "0016_fleet_time"),
    ]

    operations = [
        WidenText(
            model_name="modelconfig",
            name="model_type",
            field=models.CharField(
                default="sync",
                help_text="The runner that speaks its servers' protocol.",
                max_length=64,
                validators=[gpus.models.model_config.installed_runner],
            ),
        ),
    ]
