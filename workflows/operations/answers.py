"""Answers the questions of runs to people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction

from artifacts.uses import add_run_uses
from foundation.database.connections import write_lock
from foundation.json_text import canonical_json, same_value
from gpus.registry.audit import record
from jobs.ports import Ports
from jobs.submission.artifact_refs import confirm_uploads
from jobs.submission.request import KeyedRequest
from workflows.domain.errors import (
    AnswerInvalid,
    NotWaitingForAnswer,
    NotYours,
    OtherRound,
    UnknownNode,
    WaitExpired,
)
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState
from workflows.execution.runs import check_value
from workflows.execution.waits import size_of_answer, write_ends
from workflows.models import Node, Run, Wait
from workflows.operations.sent_keys import earlier_sent, note_key


def may_answer(wait: Wait, key_name: str | None) -> bool:
    """Return True if an API key of this name may answer a question; None: an operator, who may answer all."""
    named = wait.options.get("answer_by")
    return named is None or key_name is None or key_name in named


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that was taken. replayed: that of an earlier request with the same key."""

    replayed: bool = False


def answer_wait(
    run: Run,
    key: str,
    answer: Any,
    *,
    by: str,
    ports: Ports,
    key_name: str | None = None,
    round_number: int | None = None,
    idempotency_key: KeyedRequest | None = None,
) -> Answered:
    """Answer a human node of a run. key: of the node, such as ``best`` or ``best[3]``.

    Exactly one of several concurrent answers is taken; the same one again by the same actor changes nothing,
    so that it can be sent again when its response was lost. by: the actor. key_name: of the API key; None: an
    operator, whose answer is audited. round_number: of the node whose question it answers; None: the newest.
    idempotency_key: a request that is repeated with it answers no further question. Raises UnknownNode,
    NotYours, NotWaitingForAnswer, OtherRound, WaitExpired, AnswerInvalid, AnswerTooLarge,
    ArtifactStoreUnavailable, TooManySignals, IdempotencyConflict.
    """
    if idempotency_key is not None and earlier_sent(run.tenant_id, idempotency_key) is not None:
        return Answered(replayed=True)
    wait, newest_round = _asked_wait(run, key, round_number)
    if not may_answer(wait, key_name):
        raise NotYours
    if wait.answered_at is None and wait.node.round == newest_round:
        _check_answer(wait, answer, ports)
        confirm_uploads(answer, run.tenant_id, ports.clock.now(), ports, "/answer")
        try:
            is_audited = key_name is None
            if _take_answer(
                run, wait, answer, by=by, is_audited=is_audited, idempotency_key=idempotency_key, ports=ports
            ):
                return Answered()
        except IntegrityError:
            if idempotency_key is None or earlier_sent(run.tenant_id, idempotency_key) is None:
                raise
            return Answered(replayed=True)  # another request with this key was faster
        wait.refresh_from_db()
    if wait.answered_by == by[:200] and same_value(wait.answer, answer):
        return Answered()
    if wait.node.round != newest_round:
        raise OtherRound(
            f"The answer is for round {wait.node.round} of the node, which was restarted since: it is in "
            f"round {newest_round}.",
            pointer="/round",
        )
    raise NotWaitingForAnswer


def _asked_wait(run: Run, key: str, round_number: int | None) -> tuple[Wait, int]:
    """Return the wait of a human node in a round, and the node's newest round. round_number: None: the newest
    round. Raises UnknownNode, NotWaitingForAnswer, OtherRound."""
    nodes = Node.objects.filter(run=run, key=key).order_by("-round")
    newest = nodes.values_list("round", flat=True).first()
    if newest is None:
        raise UnknownNode(f"The run has no node {key[:80]}. {_open_questions(run)}")
    waits = Wait.objects.select_related("node").filter(
        node__run=run, node__key=key, kind=NodeKind.HUMAN.value
    )
    wait = waits.filter(node__round=newest if round_number is None else round_number).first()
    if wait is not None:
        return wait, newest
    if round_number not in (None, newest):
        raise OtherRound(
            f"The node has no question in that round; it is in round {newest}.", pointer="/round"
        )
    raise NotWaitingForAnswer


def _check_answer(wait: Wait, answer: Any, ports: Ports) -> None:
    """Check an answer to an open question. Raises WaitExpired, AnswerInvalid, AnswerTooLarge."""
    if wait.due_at is not None and wait.due_at <= ports.clock.now():
        raise WaitExpired
    size_of_answer(answer, "/answer")
    if "choose_from" in wait.options:
        if not any(same_value(answer, one) for one in wait.options["choose_from"]):
            choices = ", ".join(canonical_json(one)[:60] for one in wait.options["choose_from"][:10])
            more = ", …" if len(wait.options["choose_from"]) > 10 else ""
            raise AnswerInvalid(f"The answer is none of the choices: {choices}{more}.", pointer="/answer")
    else:
        check_value(wait.options["form"], answer, ports, "/answer")


def _take_answer(
    run: Run,
    wait: Wait,
    answer: Any,
    *,
    by: str,
    is_audited: bool,
    idempotency_key: KeyedRequest | None,
    ports: Ports,
) -> bool:
    """End a wait by an answer; False if it has ended. Raises IntegrityError if another request with the key
    was faster, TooManySignals."""
    now = ports.clock.now()
    with write_lock(1), transaction.atomic():
        followers = write_ends([wait], NodeState.COMPLETED, answer, by=by, now=now)
        if followers and idempotency_key is not None:
            sent = note_key(run.tenant_id, idempotency_key, now)
            sent.taken = 1
            sent.save(update_fields=["taken"])
        if followers:
            add_run_uses([run.id], run.tenant_id, answer)
        if followers and is_audited:
            record(by, "answer_wait", f"run:{wait.node.run_id}", node=wait.node.key)
    ports.wake_followers(followers)
    return bool(followers)


def _open_questions(run: Run) -> str:
    """Return which nodes of a run wait for an answer, as a sentence."""
    open_ones = Wait.objects.filter(node__run=run, kind=NodeKind.HUMAN.value, answered_at=None)
    keys = list(open_ones.order_by("pk").values_list("node__key", flat=True)[:6])
    if not keys:
        return "No node waits for an answer."
    more = ", …" if len(keys) > 5 else ""
    return f"These wait for an answer: {', '.join(keys[:5])}{more}."
