from django.apps import AppConfig


class ArtifactsConfig(AppConfig):
    name = "artifacts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.core.checks import Tags, register

        from artifacts.checks import check_folder, check_store

        register(check_store)
        register(check_folder, Tags.database)
