from django.apps import AppConfig


class DispatcherProjectConfig(AppConfig):
    """The composition root; an app so that its commands (`up`, `test`) are found."""

    name = "dispatcher_project"
