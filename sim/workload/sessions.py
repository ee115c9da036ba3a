"""Prompts that begin alike or come again: system prompts, data sets that repeat, conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.units import Count, PositiveCount
from ..fields import Section
from ..random import uniform
from .lengths import LengthDistribution
from .prefix import PrefixIds

Ints = NDArray[np.int64]
ID_TOKENS = 16
"""Tokens one id of a prompt covers: the usual block, so that a system prompt is shared in whole blocks."""


class SessionsSpec(Section):
    """What prompts have in common; ``input_tokens`` is then the question alone.

    A prompt is a system prompt and a question. With ``turns`` 1 there are ``groups`` x ``prompts_per_group``
    prompts in all, asked again and again, as load generators do with a data set: only the first sight of each
    is computed, and the last block of it every time. With more turns each is a conversation: a prompt holds
    the system prompt and every question and answer before it.

    Approximation: a turn is sent when the arrival process says so, even where the answer to the turn before is
    still being written; what it then shares is what has been computed by then. A conversation's turns are
    ``groups`` x ``prompts_per_group`` requests apart, so this needs more requests than that in flight.

    Attributes
    ----------
    groups : system prompts
    prompts_per_group : questions, or conversations at a time, that begin with each
    system_prompt_tokens : length of a system prompt [tokens]
    turns : questions in a conversation; 1 repeats whole prompts instead
    order : ``round_robin`` asks them in turn; ``random`` draws which (with ``turns`` 1)
    """

    groups: PositiveCount = 1
    prompts_per_group: PositiveCount = 1
    system_prompt_tokens: Count = 0
    turns: PositiveCount = 1
    order: Literal["round_robin", "random"] = "round_robin"

    @property
    def prompts(self) -> int:
        """Different questions, or conversations at a time."""
        return self.groups * self.prompts_per_group


@dataclass(frozen=True, slots=True)
class SessionPrompts:
    """The prompts of all requests.

    Attributes
    ----------
    input_tokens : whole lengths, shape (n,) [tokens]
    session : which question or conversation, shape (n,)
    prefix : what they share
    answers_too : whether the ids go on over the answers, because a later prompt holds them
    """

    input_tokens: Ints
    session: Ints
    prefix: PrefixIds
    answers_too: bool


def session_prompts(
    spec: SessionsSpec, questions: LengthDistribution, output_tokens: Ints, seed: int
) -> SessionPrompts:
    """Return the prompts of as many requests as there are answers.

    Parameters
    ----------
    spec : what they have in common
    questions : length of a question
    output_tokens : lengths of the answers, shape (n,) [tokens]
    seed : the scenario's seed
    """
    asked = np.arange(len(output_tokens))
    if spec.turns == 1:
        place = asked % spec.prompts
        if spec.order == "random" and len(asked):
            drawn = uniform(seed, "sessions", range(len(asked)))
            place = np.minimum((drawn * spec.prompts).astype(np.int64), spec.prompts - 1)
        lengths = questions.draw(seed, "input_tokens", range(spec.prompts))
        tokens, content = spec.system_prompt_tokens + lengths[place], place
        covered = tokens
    else:
        place = asked % spec.prompts
        content = asked // (spec.prompts * spec.turns) * spec.prompts + place
        lengths = questions.draw(seed, "input_tokens", range(len(asked)))
        tokens = spec.system_prompt_tokens + lengths + _history(spec, lengths + output_tokens)
        covered = tokens + output_tokens
    prefix = _ids(spec, place % spec.groups, content, covered)
    return SessionPrompts(np.maximum(tokens, 1), content, prefix, spec.turns > 1)


def _history(spec: SessionsSpec, turn_tokens: Ints) -> Ints:
    """Return what was said before in each request's conversation, shape (n,) [tokens]."""
    before = np.zeros(len(turn_tokens), dtype=np.int64)
    step = spec.prompts
    for at in range(step, len(before)):
        if at // step % spec.turns:
            before[at] = before[at - step] + turn_tokens[at - step]
    return before


def _ids(spec: SessionsSpec, group: Ints, content: Ints, covered: Ints) -> PrefixIds:
    """Return the ids: the group's where a block lies within the system prompt, else the content's own."""
    counts = -(-covered // ID_TOKENS)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    block = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], counts)
    common = block < spec.system_prompt_tokens // ID_TOKENS
    ids = np.where(common, np.repeat(group, counts), np.repeat(spec.groups + content, counts))
    return PrefixIds(offsets, ids.astype(np.uint32), ID_TOKENS)
