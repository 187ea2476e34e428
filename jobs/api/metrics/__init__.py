"""/metrics in Prometheus' text format; every name is in docs/metrics.md.

Counted when asked for, so that every process tells the same; what no row holds is in `jobs.reports.counters`.
No count goes over what is finished: a scrape costs the same at a million jobs.
"""

from .collector import SET_A_TOKEN, DispatcherCollector, metrics

__all__ = ["SET_A_TOKEN", "DispatcherCollector", "metrics"]
