"""`manage.py bench`: measures the dispatcher, the raw limit and its peers in turn, in one run.

`options` → `main` → one module per benchmark → `report` (JSON) → `page` (HTML, plots,
docs/reference/benchmarks.md). No module here imports Django: the dispatcher under test is a process like the
others."""
