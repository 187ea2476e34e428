"""Limits of definitions that are stored from now on. Stored ones were accepted, maybe under other limits."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from foundation.expressions import ExpressionLimits


@dataclass(frozen=True, slots=True)
class Limits:
    """max_bytes: of the canonical JSON. nodes: most nodes. The others are of single values."""

    max_bytes: int
    nodes: int
    text_characters: int
    expressions: ExpressionLimits
    map_items: int
    max_parallel: int
    choices: int
    answer_keys: int
    wait_seconds: float
    cache_seconds: float


def definition_limits() -> Limits:
    """Return the limits in the settings."""
    limits = settings.DISPATCHER
    return Limits(
        max_bytes=limits.workflow_bytes,
        nodes=limits.workflow_nodes,
        text_characters=limits.workflow_text_characters,
        expressions=expression_limits(),
        map_items=limits.workflow_map_items,
        max_parallel=limits.workflow_max_parallel,
        choices=limits.workflow_choices,
        answer_keys=limits.workflow_answer_keys,
        wait_seconds=limits.workflow_wait_seconds,
        cache_seconds=limits.workflow_cache_seconds,
    )


def expression_limits() -> ExpressionLimits:
    """Return the limits of expressions in the settings."""
    limits = settings.DISPATCHER
    return ExpressionLimits(
        limits.workflow_expression_characters,
        limits.workflow_expression_parts,
        limits.workflow_expression_depth,
        settings="DISPATCHER_WORKFLOW_EXPRESSION",
    )
