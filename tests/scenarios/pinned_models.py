"""What pinned workers of the scenarios hold: two of three fit together."""

from tests.gpu_host.local.models import A, B, C, Wild

MODELS = {"pinned-a": A, "pinned-b": B, "pinned-c": C, "pinned-wild": Wild}
BUDGET_MB = 500
