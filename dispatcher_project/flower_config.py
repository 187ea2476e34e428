"""Flower's options (its `--conf`): the operator's window on Celery. Found by every
``celery -A dispatcher_project flower`` through FLOWER_CONF (celery.py); variables FLOWER_* go before it.

The password comes as FLOWER_BASIC_AUTH, never from a file or a command line.
"""

read_only = True
"""What may be done to jobs is done in the admin, by services: revoking a wake would do nothing anyway."""

max_tasks = 10_000
max_workers = 1_000
purge_offline_workers = 3_600
"""Seconds. Workers are named by process: those of yesterday's deploys must not pile up."""

tasks_columns = "name,args,state,result,exception,received,runtime,worker"
natural_time = True
