"""A decoder-only model with random weights that serves: paged KV cache, steps that mix prompt chunks and decodes.

What it runs is what the simulator counts (``hwmodels.lowering``), kernel for kernel: queries, keys and values in one
matrix, gate and up in another, norms with their residual, rotary positions, SwiGLU, the attention kernels that are
timed alone, the head over the last row of every sequence, and the sampler. What it does besides (block tables, the
launches of one attention a sequence where no kernel takes unlike lengths) is host time to the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm

from ..hwmodels.spec import Attention, DenseFFN, ModelSpec
from . import decode_attention, sampling
from .call import torch_dtype
from .decode_attention import BLOCK, Paged
from .decoderparts import parts_of
from .devices import resolve
from .prefill_attention import fused
from .scheduled import Scheduled
from .source import Source
from .streaming import EPS, rotate, rotations, swiglu

Sampler = Literal["greedy", "top_p_top_k"]


@dataclass(frozen=True, slots=True)
class Linear:
    """One matrix as its kernel takes it: ``weight`` of shape (inputs, outputs), ``bias`` (outputs,) or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x weight + bias``."""
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights and cache of one layer.

    Attributes
    ----------
    qkv, o, up, down : matrices; ``up`` holds the gate's columns first
    before_attention, before_ffn : weights of the norms, shape (hidden,)
    q_norm, k_norm : weights of the norms of each head, shape (width,), or None
    k_cache, v_cache : shape (blocks, kv_heads, BLOCK, width)
    """

    qkv: Linear
    o: Linear
    up: Linear
    down: Linear
    before_attention: Tensor
    before_ffn: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    k_cache: Tensor
    v_cache: Tensor


@dataclass(frozen=True, slots=True)
class _Batch:
    """A step as the layers see it: decodes first, then chunks, one row a token.

    Attributes
    ----------
    ids, cos, sin : token ids, and the rotation of each row
    block, offset : where each row's keys and values go
    last : the last row of each sequence
    decodes : table (1, blocks) and keys of each decode
    chunks : first row, rows and keys of each chunk, and its table (1, blocks), None where nothing was cached before
    together : table, lengths and the longest of all decodes, for a kernel that takes unlike lengths
    """

    ids: Tensor
    cos: Tensor
    sin: Tensor
    block: Tensor
    offset: Tensor
    last: Tensor
    decodes: list[tuple[Tensor, int]]
    chunks: list[tuple[int, int, int, Tensor | None]]
    together: tuple[Tensor, Tensor, int] | None


class Decoder:
    """A model with random weights and a paged KV cache.

    Parameters
    ----------
    model : dense, grouped-query attention; its dtype is that of weights, activations and cache
    device : ``cpu``, ``cuda``, ``cuda:1``
    blocks : blocks of the KV cache, of ``BLOCK`` tokens each
    longest : longest sequence [tokens]
    sampler : how tokens are chosen
    seed : of weights and draws

    Raises
    ------
    KernelError : no such device here, or a model that is not built

    Attributes
    ----------
    takes_lengths : whether one kernel takes all decodes, whatever their lengths (Triton's, on a GPU in 16 bit)

    Notes
    -----
    Approximation: the base of the rotary positions is 10,000 whatever the config says; it moves no time.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: str = "cpu",
        *,
        blocks: int,
        longest: int,
        sampler: Sampler = "greedy",
        seed: int = 0,
    ) -> None:
        groups = [parts_of(model, group) for group in model.layers]
        self.model, self.sampler = model, sampler
        self.device, self.dtype = resolve(device), torch_dtype(model.dtype)
        self._source = Source(self.device, seed)
        first = groups[0][0]
        self.heads, self.kv_heads, self.width = first.n_heads, first.n_kv_heads, first.head_dim
        self.takes_lengths = decode_attention.TRITON.missing(self.device, model.dtype) is None
        with torch.inference_mode():
            self.embedding = self._source.numbers((model.vocab, model.hidden), self.dtype)
            order = model.order or tuple(
                i for i, group in enumerate(model.layers) for _ in range(group.count)
            )
            self.layers = [self._layer(*groups[i], blocks) for i in order]
            self.final_norm = self._norm(model.hidden)
            tied = model.tied_embeddings
            self.head = (
                Linear(self.embedding.t(), None) if tied else self._matrix(model.vocab, model.hidden, False)
            )
            self.cos, self.sin = rotations(longest, self.width, self.dtype, self.device)

    def step(self, batch: Sequence[Scheduled]) -> list[int]:
        """Compute every sequence's tokens, and return a next token for each.

        Parameters
        ----------
        batch : sequences in any order; none twice
        """
        order = sorted(range(len(batch)), key=lambda i: len(batch[i].tokens) > 1)
        with torch.inference_mode():
            chosen = self._sample(self.scores([batch[i] for i in order])).tolist()
        found = [0] * len(batch)
        for i, token in zip(order, chosen, strict=True):
            found[i] = token
        return found

    def scores(self, batch: Sequence[Scheduled]) -> Tensor:
        """Compute a step's sequences, decodes first, and return each one's scores, float32 (sequences, vocabulary)."""
        rows = self._rows(batch)
        residual = embedding(rows.ids, self.embedding)
        size, out = (self.model.hidden,), None
        for layer in self.layers:
            if out is not None:
                residual = residual.add_(out)
            attended = self._attention(layer, rms_norm(residual, size, layer.before_attention, EPS), rows)
            residual = residual.add_(layer.o(attended))
            out = layer.down(swiglu(layer.up(rms_norm(residual, size, layer.before_ffn, EPS))))
        if out is not None:
            residual = residual.add_(out)
        return self.head(rms_norm(residual, size, self.final_norm, EPS)[rows.last]).float()

    def _rows(self, batch: Sequence[Scheduled]) -> _Batch:
        """Lay a step's tokens out as rows."""
        ids: list[int] = []
        positions: list[int] = []
        blocks: list[int] = []
        last: list[int] = []
        decodes: list[tuple[Tensor, int]] = []
        chunks: list[tuple[int, int, int, Tensor | None]] = []
        for each in batch:
            new = len(each.tokens)
            if new > 1:
                chunks.append((len(ids), new, each.after, self._table(each) if each.before else None))
            elif not self.takes_lengths:
                decodes.append((self._table(each), each.after))
            ids += each.tokens
            positions += range(each.before, each.after)
            blocks += [each.blocks[at // BLOCK] for at in range(each.before, each.after)]
            last.append(len(ids) - 1)
        whole = torch.tensor([ids, positions, blocks], device=self.device)
        at = whole[1]
        return _Batch(
            ids=whole[0],
            cos=self.cos[at],
            sin=self.sin[at],
            block=whole[2],
            offset=at % BLOCK,
            last=torch.tensor(last, device=self.device),
            decodes=decodes,
            chunks=chunks,
            together=self._together([each for each in batch if len(each.tokens) == 1]),
        )

    def _table(self, each: Scheduled) -> Tensor:
        return torch.tensor([each.blocks[: -(-each.after // BLOCK)]], dtype=torch.int32, device=self.device)

    def _together(self, decodes: Sequence[Scheduled]) -> tuple[Tensor, Tensor, int] | None:
        """Return table, lengths and the longest of all decodes, for the kernel that takes them at once."""
        if not decodes or not self.takes_lengths:
            return None
        lengths = [each.after for each in decodes]
        width = -(-max(lengths) // BLOCK)
        table = [[*each.blocks[:width], *([0] * (width - len(each.blocks)))] for each in decodes]
        made = {"dtype": torch.int32, "device": self.device}
        return torch.tensor(table, **made), torch.tensor(lengths, **made), max(lengths)

    def _attention(self, layer: Layer, x: Tensor, rows: _Batch) -> Tensor:
        """Return what a layer's attention adds before its output matrix, shape (rows, heads * width)."""
        inner, kv = self.heads * self.width, self.kv_heads * self.width
        q, k, v = layer.qkv(x).split((inner, kv, kv), dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.width)) for part in (q, k, v))
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, (self.width,), layer.q_norm, EPS)
            k = rms_norm(k, (self.width,), layer.k_norm, EPS)
        q, k = rotate(q, rows.cos, rows.sin), rotate(k, rows.cos, rows.sin)
        layer.k_cache[rows.block, :, rows.offset] = k
        layer.v_cache[rows.block, :, rows.offset] = v
        parts: list[Tensor] = []
        if rows.together is not None:
            parts.append(_by_triton(layer, q[: len(rows.together[1])].contiguous(), *rows.together))
        for i, (table, keys) in enumerate(rows.decodes):
            parts.append(decode_attention.by_torch(_paged(layer, q[i : i + 1], table, keys)))
        for start, new, length, table in rows.chunks:
            chunk = slice(start, start + new)
            if table is None:
                keys, values = _by_head(k[chunk]), _by_head(v[chunk])
            else:
                keys, values = _paged(layer, q[:1], table, length).gathered()
            parts.append(fused(_by_head(q[chunk]), keys, values)[0].transpose(0, 1))
        return torch.cat(parts).reshape(-1, inner)

    def _sample(self, scores: Tensor) -> Tensor:
        if self.sampler == "greedy":
            return scores.argmax(dim=-1)
        size = (len(scores), min(sampling.TOP_K, scores.shape[-1]))
        return sampling.choose(scores, torch.empty(size, device=self.device).exponential_())

    def _layer(self, mixer: Attention, ffn: DenseFFN, headwise: bool, blocks: int) -> Layer:
        by_name = {matrix.name: matrix for matrix in (*mixer.linears, *ffn.linears)}
        qkv, o, up, down = (
            self._matrix(each.n, each.k, each.bias)
            for each in (by_name[name] for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
        )
        cache = (blocks, mixer.n_kv_heads, BLOCK, mixer.head_dim)
        k_cache, v_cache = (torch.zeros(cache, dtype=self.dtype, device=self.device) for _ in range(2))
        hidden = self.model.hidden
        q_norm, k_norm = (self._norm(mixer.head_dim) if headwise else None for _ in range(2))
        return Layer(
            qkv, o, up, down, self._norm(hidden), self._norm(hidden), q_norm, k_norm, k_cache, v_cache
        )

    def _matrix(self, outputs: int, inputs: int, bias: bool) -> Linear:
        weight = self._source.numbers((outputs, inputs), self.dtype).mul_(inputs**-0.5).t()
        return Linear(weight, self._source.numbers((outputs,), self.dtype) if bias else None)

    def _norm(self, width: int) -> Tensor:
        return self._source.numbers((width,), self.dtype).mul_(0.1).add_(1.0)


def _by_head(rows: Tensor) -> Tensor:
    """Return (rows, heads, width) as attention takes it: (1, heads, rows, width)."""
    return rows.transpose(0, 1)[None]


def _paged(layer: Layer, q: Tensor, table: Tensor, keys: int) -> Paged:
    """Return one sequence with its cache; the kernels that take one need no tensor of lengths."""
    return Paged(q, layer.k_cache, layer.v_cache, table, table, keys)


def _by_triton(layer: Layer, q: Tensor, table: Tensor, lengths: Tensor, longest: int) -> Tensor:
    from .triton_decode import Workspace, paged_decode

    batch = Paged(q, layer.k_cache, layer.v_cache, table, lengths, longest)
    return paged_decode(batch, Workspace.of(batch))
