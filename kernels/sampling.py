"""Choosing the next token: greedy, and by chance among the most likely ones (top-k, then top-p)."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import Call, Kernel
from .shape import KernelShape
from .source import Source

TOP_K = 50
TOP_P = 0.9


def _scores(shape: KernelShape, source: Source) -> Tensor:
    """Return float32 scores, shape (rows, vocabulary)."""
    return source.numbers((shape.num_tokens, shape.hidden), torch.float32)


def _greedy(shape: KernelShape, source: Source) -> Call:
    scores = _scores(shape, source)
    return Call(lambda: scores.argmax(dim=-1), lambda: _first_largest(scores))


def _first_largest(scores: Tensor) -> Tensor:
    largest = scores.double().amax(dim=-1, keepdim=True)
    return (scores == largest).int().argmax(dim=-1).double()


def choose(scores: Tensor, noise: Tensor, top_k: int = TOP_K, top_p: float = TOP_P) -> Tensor:
    """Draw a token a row by exponential races among the ``top_k`` likeliest that hold ``top_p`` of the chance.

    Parameters
    ----------
    scores : shape (rows, vocabulary)
    noise : exponential draws, shape (rows, top_k)
    """
    best, ids = scores.topk(min(top_k, scores.shape[-1]), dim=-1)
    chance = torch.softmax(best, dim=-1)
    beyond = chance.cumsum(dim=-1) - chance >= top_p
    picked = (chance.masked_fill(beyond, 0.0) / noise).argmax(dim=-1, keepdim=True)
    return ids.gather(1, picked)[:, 0]


def _top_p(shape: KernelShape, source: Source) -> Call:
    scores = _scores(shape, source)
    noise = -torch.log(torch.rand((shape.num_tokens, min(TOP_K, shape.hidden)), device=source.device) + 1e-9)
    return Call(lambda: choose(scores, noise), lambda: choose_plainly(scores, noise))


def choose_plainly(scores: Tensor, noise: Tensor, top_k: int = TOP_K, top_p: float = TOP_P) -> Tensor:
    """Do what ``choose`` does row by row, by sorting everything, in float64."""
    picked: list[int] = []
    for row, races in zip(scores.double().cpu(), noise.double().cpu(), strict=True):
        best, ids = row.sort(descending=True, stable=True)
        chance = torch.softmax(best[:top_k], dim=-1)
        kept = [i for i in range(len(chance)) if float(chance[:i].sum()) < top_p]
        picked.append(int(ids[max(kept, key=lambda i: float(chance[i] / races[i]))]))
    return torch.tensor(picked, dtype=torch.float64, device=scores.device)


GREEDY = Kernel("sample_greedy", "torch_argmax", ("float32",), _greedy)
TOP = Kernel("sample_topp", "torch_topk", ("float32",), _top_p)
