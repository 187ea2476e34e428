"""What GPU servers there are, and which leases hold their slots."""

from gpus import former_names

former_names.install()
