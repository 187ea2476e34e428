"""The faults of a trial, each a small class; `registry` lists them by name."""
