from django.apps import AppConfig


class ArtifactsConfig(AppConfig):
    name = "artifacts"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Raise ImproperlyConfigured for a store that can't be read, in each process as it starts."""
        from django.conf import settings
        from django.core.checks import register

        from artifacts.checks import check_store
        from artifacts.store.configured import read_place

        read_place(settings.DISPATCHER.artifact_store)  # few processes run Django's checks: not those of `up`
        register(check_store)
