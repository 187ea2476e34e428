"""The real protocol under virtual time: one thread, every step a crash point, every seed a history.

What decides is the product's own code (services, sweeps, scripts, the node's admission) on a real Valkey and
a real SQLite; only time, the order of steps and the faults are ours. `manage.py simulate` runs it."""
