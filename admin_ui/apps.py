from django.apps import AppConfig
from django.db.models.signals import post_migrate


class AdminUiConfig(AppConfig):
    name = "admin_ui"
    verbose_name = "Operators"

    def ready(self) -> None:
        import unfold.fields

        from .groups import write_groups
        from .shapes import json_block

        # unfold's own colours JSON by `style` attributes, which the Content-Security-Policy forbids
        unfold.fields.prettify_json = lambda value, encoder: json_block(value)

        # the last of our apps to migrate: by then the permissions of all others are there
        post_migrate.connect(write_groups, sender=self, dispatch_uid="admin_ui.groups")
