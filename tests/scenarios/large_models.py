"""A model that is too large for some workers."""

from tests.gpu_host.local.models import LargeRuns

MODELS = {"pinned-large": LargeRuns}
SMALL_MB, LARGE_MB = 500, 1500
