"""How the operators' admin looks. Everything it loads comes from this process."""

from __future__ import annotations

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy

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
    "STYLES": [
        lambda request: static("admin_ui/admin.css"),
        lambda request: static("admin_ui/pages.css"),
    ],
    "DASHBOARD_CALLBACK": "admin_ui.dashboard.overview.start_page",
    "SIDEBAR": {
        "show_search": True,
        "command_search": False,
        "show_all_applications": False,
        "navigation": "admin_ui.navigation.side_bar",
    },
    "COLORS": {
        "primary": {
            "50": "#ecfdf5",
            "100": "#d1fae5",
            "200": "#a7f3d0",
            "300": "#6ee7b7",
            "400": "#34d399",
            "500": "#10b981",
            "600": "#047857",  # white on it, and it on white, have to be read
            "700": "#065f46",
            "800": "#064e3b",
            "900": "#04402f",
            "950": "#022c22",
        }
    },
}
