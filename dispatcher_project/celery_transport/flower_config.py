"""Flower's options (its `--conf`): the operator's window on Celery. Found by every
``celery -A dispatcher_project flower`` through FLOWER_CONF (celery.py).

It is never open: without FLOWER_BASIC_AUTH (``user:password``, never from a file or a command line) it does
not start. Operators reach it through the admin, behind the admin's login (admin_ui/pages/flower.py). What a
FLOWER_* variable says stands, such as FLOWER_READ_ONLY=false.
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

if not (any(options.basic_auth or ()) or options.auth):  # set to nothing is a list of one empty text
    raise SystemExit("flower: set FLOWER_BASIC_AUTH to user:password; Flower is never open")

flower.app.HTTPServer = BoundedHTTPServer

Metrics.get = authenticated(Metrics.get)  # as it comes, /metrics asks nobody for a password


class BareAddress(BaseHandler):
    """The prefix without a slash after it, which Flower itself does not know: whoever types it gets there."""

    @authenticated
    def get(self) -> None:
        self.redirect(f"{self.request.path}/")


handlers.insert(0, ("", BareAddress))  # before the one that answers 404 to everything

url_prefix = FLOWER_PREFIX

address = "127.0.0.1"
"""Unless `--address` names another: as it comes, Flower listens everywhere."""

read_only = True
"""What may be done to jobs is done in the admin, by services: revoking a wake would do nothing anyway."""

max_tasks = 2_000
max_workers = 1_000
purge_offline_workers = 3_600
"""Seconds. Workers are named by process: those of yesterday's deploys must not pile up."""

tasks_columns = "name,args,kwargs,state,result,exception,received,runtime,worker"
"""args, kwargs: what runs where, and for which job, as the worker told it (`events.ShownRuns`)."""
natural_time = True

for _name in [name for name in globals() if f"FLOWER_{name.upper()}" in os.environ]:
    del globals()[_name]
