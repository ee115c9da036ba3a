"""A small ``config.json`` that tests of the reader vary."""

from __future__ import annotations

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
