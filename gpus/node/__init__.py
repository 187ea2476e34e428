"""The former name of `gpu_host.node` (`gpus.former_names`)."""

from gpus.former_names import redirect

redirect(__name__)
