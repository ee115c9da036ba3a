"""A config that cannot be read gets one line: what is wrong, what is allowed, the nearest key, where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.errors import ModelConfigError
from membound.hwmodels.hf_config import read_config

from .configs import LLAMA


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_missing_key_is_one_line_with_the_nearest_one(key: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != key} | {key[:-1] + "_": 1}
    with pytest.raises(ModelConfigError) as caught:
        read_config(config, "tiny")
    text = str(caught.value)
    assert "\n" not in text
    assert "config of tiny" in text
    assert f"key {key!r} is missing" in text
    assert f"nearest key there: {key[:-1] + '_'!r}" in text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hidden_size": "64"}, "hidden_size is '64'; allowed: a whole number, 1 or more"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"hidden_size": 65}, "hidden_size 65 is no multiple of num_attention_heads 8"),
        ({"num_key_value_heads": 3}, "num_attention_heads 8 is no multiple of num_key_value_heads 3"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; allowed: true or false"),
        ({"layer_types": ["full_attention"]}, "allowed: one entry for each of 3 layers"),
        ({"intermediate_size": None}, "key 'intermediate_size' is missing"),
        ({"num_local_experts": 4}, "key 'num_experts_per_tok' is missing"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8'; allowed: an object"),
    ],
)
def test_an_impossible_value_is_one_line(change: dict[str, object], text: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        read_config(LLAMA | change)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[1]", "3", ""])
def test_a_file_that_is_no_config_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ModelConfigError, match=r"broken\.json") as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"gone\.json: cannot be read"):
        read_config(tmp_path / "gone.json")


JUNK = st.sampled_from([None, 0, -1, 1.5, 10**30, True, "x", [], [1, "a"], {}, float("nan"), float("inf")])
HYBRID = LLAMA | {
    "model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "partial_rotary_factor": 0.25,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


@given(key=st.sampled_from(sorted(HYBRID)), value=JUNK)
@settings(deadline=None)
def test_a_damaged_value_is_read_or_refused_in_one_line(key: str, value: object) -> None:
    said, layers = "", 0
    try:
        layers = read_config(HYBRID | {key: value}).n_layers
    except ModelConfigError as error:
        said = str(error)
    assert layers > 0 or (said and "\n" not in said)


def test_more_layers_than_any_model_has_are_refused_at_once() -> None:
    with pytest.raises(ModelConfigError, match="num_hidden_layers is 1000000000; allowed: 1 to 10000"):
        read_config(LLAMA | {"num_hidden_layers": 10**9})
