from __future__ import annotations

from django.db import migrations

from gpus.migrations._append_only import AppendOnly


class Migration(migrations.Migration):
    """A version can be deleted with its workflow: only while no run has it, by the foreign key."""

    dependencies = [("workflows", "0010_key_models")]

    operations = [AppendOnly("workflows_version", "a version of a workflow", ["UPDATE"])]
