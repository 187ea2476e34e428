"""Models in a process of their own, on one GPU of this machine or on its CPU.

The worker never imports them: `process` spawns `child`, which holds the models and exchanges frames with the
worker over a pipe; `gpu` decides which run is next and when the process is replaced, and `eviction` which
models stay loaded."""
