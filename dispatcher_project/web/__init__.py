"""The web server: uvicorn with limits per connection, and the ASGI gateway in front of Django.

The limits: docs/explanation/security.md."""

import dispatcher_project.structlog_without_rich  # noqa: F401
