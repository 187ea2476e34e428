"""GPU servers, and the leases of their slots.

`gpus.handlers` and `gpus.node` are former names of modules of `gpu_host`: see `gpus.former_names`.
"""

from gpus import former_names

former_names.install()
