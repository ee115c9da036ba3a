"""Attention in plain steps and wide numbers, one head after the other, to check the fast kernels against."""

from __future__ import annotations

import torch
from torch import Tensor

from .call import wide


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Return softmax attention.

    Parameters
    ----------
    q : queries, shape (batch, heads, new, width)
    k, v : keys and values, shape (batch, kv_heads, keys, width); the new tokens are the last keys
    causal : whether a query sees no key after its own

    Returns
    -------
    Tensor of the shape of ``q``, float32 (float64 for float32 inputs)
    """
    group, new, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    hidden = None
    if causal and new > 1:
        hidden = torch.ones(new, keys, dtype=torch.bool, device=q.device).triu(keys - new + 1)
    out = torch.empty(q.shape, dtype=wide(q[:0]).dtype, device=q.device)
    for sequence in range(q.shape[0]):
        for head in range(q.shape[1]):
            scores = wide(q[sequence, head]) @ wide(k[sequence, head // group]).t() * q.shape[3] ** -0.5
            if hidden is not None:
                scores.masked_fill_(hidden, -torch.inf)
            out[sequence, head] = torch.softmax(scores, dim=-1) @ wide(v[sequence, head // group])
    return out
