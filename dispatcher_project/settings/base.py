"""Settings shared by all settings modules, among them those of the HTTP API and of the admin.

REDIS_URL, BROKER_URL and DATABASE_URL choose the services.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static
from django.urls import reverse_lazy

from dispatcher_project.logging import logging_config
from dispatcher_project.supervisor.data_folder import default_folder
from foundation.database.sqlite3.checkpoint import OWN_PAGES

from .celery import broker_url, checked_redis, unreadable_address
from .dispatcher import read_settings

BASE_DIR = Path(__file__).resolve().parents[2]
env = environ.Env()

DATA_DIR = default_folder()
DISPATCHER = read_settings(env)

ARTIFACT_FOLDER = DATA_DIR / "artifacts"
"""Default of DISPATCHER_ARTIFACT_STORE."""

# cookies, and the browser's permissions for a page (docs/explanation/security.md)
IS_HTTPS = DISPATCHER.public_url.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = IS_HTTPS
_COOKIE = "__Host-" if IS_HTTPS else ""  # other hosts of the domain can't set cookies with this prefix
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = f"{_COOKIE}sessionid", f"{_COOKIE}csrftoken"
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = math.ceil(DISPATCHER.session_seconds)
SECURE_HSTS_SECONDS = DISPATCHER.hsts_seconds if IS_HTTPS else 0
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

SECRET_KEY = env.str("DJANGO_SECRET_KEY", default="")
DEBUG = env.bool("DJANGO_DEBUG", default=False)
ALLOWED_HOSTS = env.list("DJANGO_ALLOWED_HOSTS", default=["*"])
CSRF_TRUSTED_ORIGINS = env.list("DJANGO_CSRF_TRUSTED_ORIGINS", default=[])

REDIS_URL = checked_redis("REDIS_URL", env.str("REDIS_URL", default="redis://127.0.0.1:6379/0"))
BROKER_URL = broker_url(checked_redis("BROKER_URL", env.str("BROKER_URL", default=REDIS_URL)))
BROKER_SENTINEL_MASTER = env.str("BROKER_SENTINEL_MASTER", default="mymaster")
CELERY_APP = "dispatcher_project.celery.app"
DISPATCHER_PORTS = "dispatcher_project.wiring.make_production_ports"
"""Import path of the function that makes a process's ports (`jobs.ports`)."""
DISPATCHER_SWEEPS = ("workflows.sweeps.registry.WorkflowSweeps",)
DISPATCHER_METRICS = ("workflows.metrics.collect", "workflows.schedules.metrics.collect")
"""Import paths of functions that return further sweeps (`jobs.sweeps.registry`)."""
FLOWER_LOGIN = env.str("FLOWER_BASIC_AUTH", default="").partition(",")[0]
"""``user:password`` that the admin sends to Flower; Flower reads the same variable."""

LOGGING = logging_config(
    style=env.str("DISPATCHER_LOG_STYLE", default=""), level=env.str("DISPATCHER_LOG_LEVEL", default="INFO")
)

_PAGES = [
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin.apps.SimpleAdminConfig",  # urls.py discovers
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "django_filters",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
]
PAGES = env.bool("DISPATCHER_PAGES", default=True)
"""False for workers, which need neither the admin nor the API: they start faster and use less memory."""
INSTALLED_APPS = [
    *(_PAGES if PAGES else ()),
    "django_structlog",
    "rest_framework_api_key",
    "artifacts",
    "gpus",
    "jobs",
    "workflows",
    "workflows.schedules",
    *(("admin_ui",) if PAGES else ()),
    "dispatcher_project",
    "benchmarks",
    "verification",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "dispatcher_project.web.headers.SecurityHeaders",
    "dispatcher_project.web.headers.CheckedHeaders",
    "admin_ui.middleware.AdminHosts",
    "admin_ui.middleware.NoNulls",
    "dispatcher_project.web.static_files.StaticFiles",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "admin_ui.middleware.SessionLimits",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "admin_ui.pages.sign_in.PasswordsBusyMiddleware",
]

ROOT_URLCONF = "dispatcher_project.urls"
WSGI_APPLICATION = "dispatcher_project.wsgi.application"
ASGI_APPLICATION = "dispatcher_project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "admin_ui" / "templates"],  # before the packages: overrides of unfold
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


_POSTGRESQL_PATIENCE = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""With libpq's defaults a thread waits minutes to connect to an unreachable host, and hours for its
answer."""


_PREPARE_AFTER = 5
"""Executions of a statement of `foundation.database.statements` after which it is prepared in PostgreSQL.
Poolers in transaction mode need ``?prepare_threshold=none``."""


_CONNECTION_SECONDS = 60
"""A new connection takes 15 ms on PostgreSQL; on SQLite 0.2 ms, and its compiled statements are lost."""

_KEPT_STATEMENTS = 1024
"""Statements that a connection to SQLite keeps compiled. There are hundreds; one beyond it is compiled each
time."""


def database(url: str) -> dict[str, Any]:
    """Return the Django database entry of a URL; SQLite gets WAL and immediate transactions (docs/adr/0003).

    url: its query sets driver options, such as ``?timeout=5`` (SQLite) or ``?connect_timeout=3``
    (PostgreSQL). Raises ImproperlyConfigured.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme not in ("sqlite", "postgres", "postgresql"):
        raise ImproperlyConfigured(
            f"DATABASE_URL must begin with postgresql:// or sqlite://, not {scheme if found else 'nothing'}://"
        )
    if scheme == "sqlite" and not rest.startswith(("/", ":memory:")):  # else it would be one in memory
        raise ImproperlyConfigured(
            "DATABASE_URL of a file has three slashes, and four before an absolute path"
        )
    try:
        entry = dict(env.db_url_config(url))
    except ValueError:
        raise unreadable_address("DATABASE_URL") from None
    if entry["ENGINE"] == "django.db.backends.sqlite3":
        entry["ENGINE"] = "foundation.database.sqlite3"
        entry["OPTIONS"] = {
            "timeout": 20,
            "cached_statements": _KEPT_STATEMENTS,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
            f"PRAGMA wal_autocheckpoint={OWN_PAGES};",
            **entry.get("OPTIONS", {}),
        }
    else:
        entry["ENGINE"] = "foundation.database.postgresql"
        entry["OPTIONS"] = {**_POSTGRESQL_PATIENCE, **entry.get("OPTIONS", {})}
        entry["CONN_HEALTH_CHECKS"] = True
        entry["OPTIONS"]["prepare_threshold"] = _prepare_after(entry["OPTIONS"].get("prepare_threshold"))
    entry.setdefault("CONN_MAX_AGE", _CONNECTION_SECONDS)
    return entry


def _prepare_after(value: Any) -> int | None:
    if value == "none":
        return None
    if value is None or isinstance(value, int):
        return _PREPARE_AFTER if value is None else value
    raise ImproperlyConfigured(f"prepare_threshold in DATABASE_URL is a whole number or none, not {value!r}")


DATABASE_URL = env.str("DATABASE_URL", default=f"sqlite:///{DATA_DIR / 'db.sqlite3'}")
DATABASES = {"default": database(DATABASE_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = None  # whitenoise serves files from their packages
STATICFILES_DIRS = [BASE_DIR / "admin_ui" / "vendored"]  # searched before those of the packages
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

PASSWORD_HASHERS = ["jobs.operations.sign_in.BoundedHasher"]
AUTH_PASSWORD_VALIDATORS = [{"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"}]
DATA_UPLOAD_MAX_MEMORY_SIZE = None  # the API limits bodies itself and answers 413
DATA_UPLOAD_MAX_NUMBER_FIELDS = 2_000  # a form has a checkbox for each of up to 1,000 nodes of a run

# the HTTP API
REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "jobs.api.authentication.KeyAuthentication",
        "jobs.api.authentication.StaffSession",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["jobs.api.authentication.HasScopeOrPermission"],
    "DEFAULT_PARSER_CLASSES": ["foundation.http_api.json_parser.StrictJsonParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "jobs.api.errors.handle_exception",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_METADATA_CLASS": None,
}

SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "GPU dispatcher",
    "DESCRIPTION": "Submit AI inference jobs, follow them, and run the fleet of GPU servers.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENFORCE_NON_BLANK_FIELDS": True,
    "POSTPROCESSING_HOOKS": ["jobs.api.documents.add_components"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

CSRF_FAILURE_VIEW = "jobs.api.errors.csrf_failure"
IPWARE_META_PRECEDENCE_ORDER = ("REMOTE_ADDR",)  # the web server sets it from trusted proxies' headers
DJANGO_STRUCTLOG_STATUS_4XX_LOG_LEVEL = 20  # INFO: client errors are not warnings

# appearance of the admin; all its files come from this process
FORMAT_MODULE_PATH = ["admin_ui.formats"]

LOGIN_REDIRECT_URL = "admin:index"

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "GPU dispatcher",
    "SITE_HEADER": "GPU dispatcher",
    "SITE_SUBHEADER": "Operators",
    "SITE_SYMBOL": "memory",
    "SITE_URL": reverse_lazy("admin:index"),
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda request: static("admin_ui/favicon.svg"),
        }
    ],
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_BACK_BUTTON": True,
    "SCRIPTS": [
        lambda request: static("admin_ui/strict.js"),
        lambda request: static("admin_ui/accessible.js"),
    ],
    "STYLES": [
        lambda request: static("admin_ui/colors.css"),
        lambda request: static("admin_ui/admin.css"),
        lambda request: static("admin_ui/pages.css"),
    ],
    "DASHBOARD_CALLBACK": "admin_ui.dashboard.pages.start_page",
    "SIDEBAR": {
        "show_search": True,
        "command_search": False,
        "show_all_applications": False,
        "navigation": "admin_ui.pages.navigation.side_bar",
    },
    "COLORS": lambda request: {},  # they are in colors.css; here they would become an inline style sheet
}
