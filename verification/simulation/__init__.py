"""The real protocol under virtual time: one thread, every step a crash point, every seed a history.

The code under test is the product's own (services, sweeps, scripts, the node's admission) on a real Valkey
and a real SQLite; only time, the order of steps and the faults are simulated. `manage.py simulate` runs it.
"""
