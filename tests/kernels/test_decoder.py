"""The decoder's paged steps against the same weights in one plain forward pass."""

from __future__ import annotations

import pytest
import torch
from membound.hwmodels.hf_config import read_config
from membound.hwmodels.lowering import Parallelism, lower_model
from membound.hwmodels.precision import Quantization
from membound.kernels.decode_attention import BLOCK
from membound.kernels.decoder import Decoder
from membound.kernels.errors import KernelError
from membound.kernels.reference import attention
from membound.kernels.scheduled import Scheduled
from membound.kernels.streaming import EPS
from torch import Tensor
from torch.nn.functional import rms_norm, silu

LONGEST = 96
CONFIGS = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
}


def made(family: str, dtype: str = "float32", blocks: int = 32) -> Decoder:
    """Return a small decoder of a family."""
    config = {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 128,
        "max_position_embeddings": LONGEST,
        "torch_dtype": dtype,
    }
    return Decoder(read_config(config | CONFIGS[family], family), blocks=blocks, longest=LONGEST, seed=3)


def prompts(*lengths: int) -> list[list[int]]:
    """Return reproducible prompts of these lengths."""
    drawn = torch.Generator().manual_seed(1)
    return [torch.randint(0, 128, (n,), generator=drawn).tolist() for n in lengths]


def turned(x: Tensor) -> Tensor:
    """Rotate (tokens, heads, width) by the definition: pairs as complex numbers."""
    width = x.shape[-1]
    angle = torch.arange(len(x), dtype=torch.float64)[:, None] * 10_000.0 ** (
        -2.0 * torch.arange(width // 2, dtype=torch.float64) / width
    )
    turns = torch.polar(torch.ones_like(angle), angle)[:, None]
    z = torch.complex(x[..., : width // 2].double(), x[..., width // 2 :].double()) * turns
    return torch.cat((z.real, z.imag), dim=-1)


def plain_scores(decoder: Decoder, ids: list[int]) -> Tensor:
    """Return the scores after each token by full causal attention in float64, shape (tokens, vocabulary)."""
    size = (decoder.model.hidden,)
    x = decoder.embedding[ids].double()
    inner, kv = decoder.heads * decoder.width, decoder.kv_heads * decoder.width
    for layer in decoder.layers:
        h = rms_norm(x, size, layer.before_attention.double(), EPS) @ layer.qkv.weight.double()
        if layer.qkv.bias is not None:
            h = h + layer.qkv.bias
        q, k, v = (part.reshape(len(ids), -1, decoder.width) for part in h.split((inner, kv, kv), dim=-1))
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, (decoder.width,), layer.q_norm.double(), EPS)
            k = rms_norm(k, (decoder.width,), layer.k_norm.double(), EPS)
        q, k = turned(q), turned(k)
        out = attention(*(part.transpose(0, 1)[None] for part in (q, k, v)))[0].transpose(0, 1)
        x = x + out.reshape(len(ids), inner).double() @ layer.o.weight.double()
        gate, up = (rms_norm(x, size, layer.before_ffn.double(), EPS) @ layer.up.weight.double()).chunk(2, -1)
        x = x + (silu(gate) * up) @ layer.down.weight.double()
    return rms_norm(x, size, decoder.final_norm.double(), EPS) @ decoder.head.weight.double()


@pytest.mark.parametrize("family", CONFIGS)
def test_a_prompt_in_chunks_and_then_decodes_scores_as_one_plain_forward_pass(family: str) -> None:
    decoder = made(family)
    (ids,) = prompts(61)
    wanted = plain_scores(decoder, ids)
    blocks = [7, 3, 11, 0]
    at = 0
    with torch.inference_mode():
        for size in (17, 1, 23, 16, 1, 1, 2):
            found = decoder.scores([Scheduled(ids[at : at + size], at, blocks)])[0]
            at += size
            torch.testing.assert_close(found.double(), wanted[at - 1], rtol=1e-4, atol=1e-4)
    assert at == len(ids)


def test_a_chunked_prompt_and_one_shot_give_equal_scores() -> None:
    decoder = made("llama")
    (ids,) = prompts(40)
    with torch.inference_mode():
        whole = decoder.scores([Scheduled(ids, 0, [0, 1, 2])])
        decoder.scores([Scheduled(ids[:19], 0, [5, 6, 7])])
        parts = decoder.scores([Scheduled(ids[19:], 19, [5, 6, 7])])
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-4)


def test_greedy_answers_do_not_depend_on_who_else_is_in_the_batch() -> None:
    decoder = made("qwen3")
    first, second, third = prompts(33, 20, 9)
    tables = ([1, 9, 4], [2, 8, 6], [3, 5, 7])
    answers: list[list[int]] = [[], [], []]
    # The third arrives while the others decode, its prompt in two chunks.
    answers[1] += decoder.step([Scheduled(second, 0, tables[1])])
    answers[0] += decoder.step([Scheduled(first, 0, tables[0])])
    for i in range(8):
        batch = [
            Scheduled([answers[0][-1]], 33 + i, tables[0]),
            Scheduled([answers[1][-1]], 20 + i, tables[1]),
        ]
        if i < 2:
            batch.insert(1, Scheduled(third[:4] if i == 0 else third[4:], 4 * i, tables[2]))
        found = decoder.step(batch)
        if i == 1:
            answers[2].append(found[1])
        answers[0].append(found[0])
        answers[1].append(found[-1])
    for prompt, answer in zip((first, second, third), answers, strict=True):
        ids = list(prompt)
        for token in answer:
            assert int(plain_scores(decoder, ids)[-1].argmax()) == token
            ids.append(token)


def test_one_kernel_for_all_decodes_scores_as_one_kernel_for_each() -> None:
    together, each = made("llama"), made("llama")
    together.takes_lengths = True
    sizes, tables = (35, 5, 18), ([1, 9, 4], [2, 8, 6], [3, 5, 7])
    ids = prompts(*sizes)
    found = []
    for decoder in (together, each):
        with torch.inference_mode():
            decoder.scores([Scheduled(p[:-1], 0, t) for p, t in zip(ids[:2], tables[:2], strict=True)])
            batch = [Scheduled(p[-1:], len(p) - 1, t) for p, t in zip(ids[:2], tables[:2], strict=True)]
            found.append(decoder.scores([*batch, Scheduled(ids[2], 0, tables[2])]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_sampled_tokens_are_among_the_likeliest() -> None:
    decoder = made("llama", "bfloat16")
    decoder.sampler = "top_p_top_k"
    (ids,) = prompts(20)
    with torch.inference_mode():
        likeliest = decoder.scores([Scheduled(ids, 0, [0, 1])])[0].topk(50).indices.tolist()
    assert all(decoder.step([Scheduled(ids, 0, [0, 1])])[0] in likeliest for _ in range(10))


def test_the_matrices_are_those_that_the_simulator_counts() -> None:
    decoder = made("qwen2")
    plan = lower_model(decoder.model, Parallelism(), Quantization())
    layer = decoder.layers[0]
    built = [(m.weight.shape[1], m.weight.shape[0]) for m in (layer.qkv, layer.o, layer.up, layer.down)]
    assert built == [(each.n, each.k) for each in plan.layers[0].linears]
    assert tuple(decoder.head.weight.shape) == (plan.head.k, plan.head.n)
    cached = sum(part.nbytes for each in decoder.layers for part in (each.k_cache, each.v_cache))
    assert cached == 32 * BLOCK * plan.kv_bytes_per_token


def test_a_model_that_is_not_built_is_refused_by_name() -> None:
    config = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 128}
    config |= {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96}
    config |= {"max_position_embeddings": 64}
    with pytest.raises(KernelError, match="mixtral"):
        Decoder(read_config(config, "tiny-mixtral"), blocks=4, longest=64)
