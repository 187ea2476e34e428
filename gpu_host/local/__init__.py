"""Models in a process of their own, on one GPU of this machine or on its CPU.

The worker never imports them: `process` spawns `child`, which holds them and talks over a pipe of its own;
`gpu` decides what is loaded, who runs, and when the process is replaced.
"""
