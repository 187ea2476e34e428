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
    "SCRIPTS": [lambda request: static("admin_ui/strict.js")],
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
    "COLORS": lambda request: {},  # in colors.css: here they would become an inline style sheet
}
