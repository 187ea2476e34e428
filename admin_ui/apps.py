from django.apps import AppConfig
from django.db.models.signals import post_migrate


class AdminUiConfig(AppConfig):
    name = "admin_ui"
    verbose_name = "Operators"

    def ready(self) -> None:
        from .groups import write_groups

        # the last of our apps to migrate: by then the permissions of all others are there
        post_migrate.connect(write_groups, sender=self, dispatch_uid="admin_ui.groups")
