"""``python -m dispatcher_project.cli COMMAND``: manage.py's commands, also from a wheel. `up` starts its
processes by it.
"""

import sys

from dispatcher_project.cli.main import manage

manage(sys.argv)
