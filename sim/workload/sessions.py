"""Prompts that begin alike or come again: system prompts, data sets that repeat, conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from ...hwmodels.units import Count, PositiveCount, Seconds
from ..fields import Section
from ..random import uniform
from .lengths import LengthDistribution
from .prefix import PrefixIds

Ints = NDArray[np.int64]
ID_TOKENS = 16
"""Tokens one id of a prompt covers: the usual block, so that a system prompt is shared in whole blocks."""
_AT_ONCE = 1 << 16


class SessionsSpec(Section):
    """What prompts have in common; ``input_tokens`` is then the question alone.

    A prompt is a system prompt and a question. With ``turns`` 1 there are ``groups`` x ``prompts_per_group``
    prompts in all, asked again and again, as load generators do with a data set: only the first sight of each
    is computed, and the last block of it every time. With more turns each is a conversation: a prompt holds
    the system prompt and every question and answer before it.

    With ``think_time_s`` the arrival process says when conversations begin, and each later turn comes so long
    after the answer before it. An agent's turn goes on by itself: each of ``tool_calls`` answers calls a tool,
    whose result (``tool_tokens``) comes back ``tool_delay_s`` later as the next request's prompt.

    Approximation: without ``think_time_s`` a turn is sent when the arrival process says so, even where the
    answer to the turn before is still being written; what it then shares is what has been computed by then. A
    conversation's turns are ``groups`` x ``prompts_per_group`` requests apart, so this needs more requests
    than that in flight.

    Attributes
    ----------
    groups : system prompts
    prompts_per_group : questions, or conversations at a time, that begin with each
    system_prompt_tokens : length of a system prompt [tokens]
    few_shot_sets, few_shot_tokens : sets of worked examples behind each system prompt, asked in turn, and their
        length [tokens]
    turns : questions in a conversation; 1 repeats whole prompts instead
    order : ``round_robin`` asks them in turn; ``random`` draws which (with ``turns`` 1)
    think_time_s : mean pause between an answer and the next turn; null: turns do not wait for answers [s]
    tool_calls : further requests of each turn, each the result of a tool that the answer before it called
    tool_delay_s : mean time that a tool takes [s]
    tool_tokens : length of a tool's result [tokens]
    pauses : whether pauses and tools take the mean each time, or are exponentially distributed
    """

    groups: PositiveCount = 1
    prompts_per_group: PositiveCount = 1
    system_prompt_tokens: Count = 0
    few_shot_sets: PositiveCount = 1
    few_shot_tokens: Count = 0
    turns: PositiveCount = 1
    order: Literal["round_robin", "random"] = "round_robin"
    think_time_s: Seconds | None = None
    tool_calls: Count = 0
    tool_delay_s: Seconds = 1.0
    tool_tokens: PositiveCount = 200
    pauses: Literal["constant", "exponential"] = "constant"

    @model_validator(mode="after")
    def _what_follows_answers(self) -> SessionsSpec:
        if self.think_time_s is None and self.tool_calls:
            raise ValueError("tool_calls follow answers: give think_time_s, too (0 with one turn)")
        if self.think_time_s is not None and (self.prompts_per_group > 1 or self.order != "round_robin"):
            raise ValueError(
                "with think_time_s the arrivals begin conversations; leave out prompts_per_group and order"
            )
        return self

    @property
    def requests_each(self) -> int:
        """Requests of one conversation."""
        return self.turns * (1 + self.tool_calls)

    @property
    def common_tokens(self) -> int:
        """Tokens before the question: system prompt and examples [tokens]."""
        return self.system_prompt_tokens + self.few_shot_tokens

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
    pause_ns : time between the answer to the request before and this one, -1 where a conversation begins,
        shape (n,) [ns]; None where requests do not wait for answers
    """

    input_tokens: Ints
    session: Ints
    prefix: PrefixIds
    answers_too: bool
    pause_ns: Ints | None = None


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
    if spec.think_time_s is not None:
        return _followed(spec, questions, output_tokens, seed)
    if spec.turns == 1:
        place = asked % spec.prompts
        if spec.order == "random" and len(asked):
            drawn = uniform(seed, "sessions", range(len(asked)))
            place = np.minimum((drawn * spec.prompts).astype(np.int64), spec.prompts - 1)
        lengths = questions.draw(seed, "input_tokens", range(int(place.max(initial=-1)) + 1))
        tokens, content = spec.common_tokens + lengths[place], place
        covered = tokens
    else:
        place = asked % spec.prompts
        content = asked // (spec.prompts * spec.turns) * spec.prompts + place
        lengths = questions.draw(seed, "input_tokens", range(len(asked)))
        tokens = spec.common_tokens + lengths + _history(spec, lengths + output_tokens)
        covered = tokens + output_tokens
    prefix = _ids(spec, place, content, covered)
    return SessionPrompts(np.maximum(tokens, 1), content, prefix, spec.turns > 1)


def _followed(
    spec: SessionsSpec, questions: LengthDistribution, output_tokens: Ints, seed: int
) -> SessionPrompts:
    """Return conversations whose requests wait for answers: those of one follow each other."""
    each, asked = spec.requests_each, np.arange(len(output_tokens))
    conversation, position = asked // each, asked % each
    by_user = position % (1 + spec.tool_calls) == 0
    said = np.where(by_user, questions.draw(seed, "input_tokens", range(len(asked))), spec.tool_tokens)
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(said + output_tokens)[:-1]])[: len(asked)]
    tokens = spec.common_tokens + said + before - before[conversation * each]
    mean_s = np.where(by_user, spec.think_time_s or 0.0, spec.tool_delay_s)
    if spec.pauses == "exponential" and len(asked):
        mean_s = -mean_s * np.log1p(-uniform(seed, "pauses", range(len(asked))))
    pause_ns = np.where(position > 0, np.rint(mean_s * 1e9).astype(np.int64), -1)
    prefix = _ids(spec, conversation, conversation, tokens + output_tokens)
    return SessionPrompts(np.maximum(tokens, 1), conversation, prefix, each > 1, pause_ns)


def _history(spec: SessionsSpec, turn_tokens: Ints) -> Ints:
    """Return what was said before in each request's conversation, shape (n,) [tokens]."""
    before = np.zeros(len(turn_tokens), dtype=np.int64)
    step = spec.prompts
    for at in range(step, len(before)):
        if at // step % spec.turns:
            before[at] = before[at - step] + turn_tokens[at - step]
    return before


def _ids(spec: SessionsSpec, place: Ints, content: Ints, covered: Ints) -> PrefixIds:
    """Return the ids: a block's is the group's within the system prompt, the set's within the examples, else its own.

    ``place`` counts prompts in turn over groups, and in each over the sets of examples.
    """
    counts = -(-covered // ID_TOKENS)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    ids = np.empty(int(offsets[-1]), dtype=np.uint32)
    for start in range(0, len(counts), _AT_ONCE):  # in one go a million prompts would need gigabytes
        stop = min(start + _AT_ONCE, len(counts))
        ids[offsets[start] : offsets[stop]] = _ids_of(
            spec, place[start:stop], content[start:stop], counts[start:stop]
        )
    return PrefixIds(offsets, ids, ID_TOKENS)


def _ids_of(spec: SessionsSpec, place: Ints, content: Ints, counts: Ints) -> Ints:
    """Return the ids of some prompts, ``counts`` of each, one prompt after the other."""
    group, sets = place % spec.groups, spec.few_shot_sets
    shots = spec.groups + group * sets + place // spec.groups % sets
    block = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    ids = np.repeat(spec.groups * (1 + sets) + content, counts)
    examples = block < spec.common_tokens // ID_TOKENS
    ids = np.where(examples, np.repeat(shots, counts), ids)
    common = block < spec.system_prompt_tokens // ID_TOKENS
    return np.where(common, np.repeat(group, counts), ids)
