from django.apps import AppConfig
from django.db.models.signals import post_migrate


class AdminUiConfig(AppConfig):
    name = "admin_ui"
    verbose_name = "Operators"

    def ready(self) -> None:
        import unfold.fields

        from admin_ui.parts.formatting import json_block
        from admin_ui.parts.groups import write_groups

        # unfold's own version colours JSON with `style` attributes, which the Content-Security-Policy forbids
        unfold.fields.prettify_json = lambda value, encoder: json_block(value)

        # our last app to migrate: the permissions of all the others exist by then
        post_migrate.connect(write_groups, sender=self, dispatch_uid="admin_ui.parts.groups")
