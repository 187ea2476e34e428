"""Flower's options (its `--conf`), loaded by ``celery -A dispatcher_project flower`` through FLOWER_CONF
(dispatcher_project/celery.py).

Flower always needs a password: without FLOWER_BASIC_AUTH (``user:password``, only from the environment) it
does not start. Operators reach it through the admin, behind the admin's login (admin_ui/pages/flower.py).
FLOWER_* variables, such as FLOWER_READ_ONLY=false, override the options here.
"""

import os

import flower.app
from flower.urls import handlers
from flower.views import BaseHandler
from flower.views.monitor import Metrics
from tornado.options import options
from tornado.web import authenticated

from admin_ui import FLOWER_PREFIX
from dispatcher_project.celery_transport.flower_server import BoundedHTTPServer

if not (any(options.basic_auth or ()) or options.auth):  # an empty variable is a list with one empty text
    raise SystemExit(
        "flower: set FLOWER_BASIC_AUTH to user:password; Flower does not start without a password"
    )

flower.app.HTTPServer = BoundedHTTPServer

Metrics.get = authenticated(Metrics.get)  # Flower's own /metrics needs no password


class BareAddress(BaseHandler):
    """Redirects the prefix without its trailing slash, which Flower has no route for."""

    @authenticated
    def get(self) -> None:
        self.redirect(f"{self.request.path}/")


handlers.insert(0, ("", BareAddress))  # before the catch-all 404

url_prefix = FLOWER_PREFIX

address = "127.0.0.1"
"""Flower's default is all addresses; `--address` overrides this."""

read_only = True
"""Jobs are managed in the admin, through services. Revoking a task here would only revoke a wake."""

max_tasks = 2_000
max_workers = 1_000
purge_offline_workers = 3_600
"""Seconds. Workers are named by process, so those of earlier deploys would accumulate."""

tasks_columns = "name,args,kwargs,state,result,exception,received,runtime,worker"
"""args: model and slot; kwargs: the job's id; both from `events.ShownRuns`."""
natural_time = True

for _name in [name for name in globals() if f"FLOWER_{name.upper()}" in os.environ]:
    del globals()[_name]
