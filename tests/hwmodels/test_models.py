"""The bundled models: found under every usual name, complete, and as large as published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from membound.hwmodels.errors import CatalogError
from membound.hwmodels.model import MODELS, list_models, load_model, model_aliases
from membound.hwmodels.params import parameter_count
from membound.hwmodels.spec import Attention, MoEFFN, MultiHeadLatentAttention, Recurrent

# Number of parameters that the published checkpoint reports (its tensors' sizes summed), text models: exact.
EXACT = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "codellama-34b": 33_743_970_304,
    "yi-34b": 34_388_917_248,
    "mistral-7b": 7_248_023_552,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-nemo": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "glm-4.5-air": 106_852_251_264,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "phi-2": 2_779_683_840,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "olmo-2-32b": 32_234_279_936,
    "opt-6.7b": 6_658_473_984,
    "bloom-176b": 176_247_271_424,
}
# With a vision tower, whose norms we do not list; or a correction bias that the checkpoint does not count.
NEARLY_EXACT = {
    "gemma-3-4b": 4_300_079_472,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-27b": 27_432_406_640,
    "llama-4-scout": 108_641_793_536,
    "llama-4-maverick": 401_583_781_376,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
}
# Rounded figures of model cards and reports: total; active where stated, and how many of the two embedding
# tables (input, output) that figure leaves out.
CARDS: dict[str, tuple[float, float | None, int]] = {
    "deepseek-v3": (671e9, 37e9, 0),
    "deepseek-r1": (671e9, 37e9, 0),
    "deepseek-v3.2": (671e9, 37e9, 1),
    "deepseek-v4-flash": (284e9, 13e9, 1),
    "kimi-k2": (1026e9, 32e9, 1),
    "glm-5": (744e9, 40e9, 1),
    "glm-4.5-air": (106e9, 12e9, 2),
    "minimax-m2.5": (230e9, 10e9, 1),
    "mimo-v2-flash": (309e9, 15e9, 0),
    "mixtral-8x7b": (46.7e9, 12.9e9, 0),
    "mixtral-8x22b": (141e9, 39e9, 0),
    "qwen3-30b-a3b": (30.5e9, 3.3e9, 0),
    "qwen3-235b-a22b": (235e9, 22e9, 0),
    "qwen3-coder-480b-a35b": (480e9, 35e9, 0),
    "gpt-oss-20b": (20.91e9, 3.61e9, 1),
    "gpt-oss-120b": (116.83e9, 5.13e9, 1),
    "llama-4-scout": (109e9, 17e9, 0),
    "llama-4-maverick": (400e9, 17e9, 0),
    "gemma-4-26b-a4b": (25.2e9 + 0.55e9, 3.8e9, 0),
    "gemma-4-31b": (30.7e9 + 0.55e9, None, 0),
    "nemotron-3-nano-30b-a3b": (31.6e9, 3.6e9, 0),
}
# Only the name says how large it is.
NAMES = {
    "qwen3.5-27b": 27e9,
    "qwen3.5-35b-a3b": 35e9,
    "qwen3.5-122b-a10b": 122e9,
    "qwen3.5-397b-a17b": 397e9,
    "falcon-7b": 7e9,
    "opt-66b": 66e9,
}


def total(name: str) -> int:
    """Parameters of a bundled model."""
    return parameter_count(load_model(name)).total


@pytest.mark.parametrize("name", EXACT)
def test_a_published_checkpoint_is_counted_to_the_last_parameter(name: str) -> None:
    assert total(name) == EXACT[name]


@pytest.mark.parametrize("name", NEARLY_EXACT)
def test_towers_and_buffers_cost_less_than_two_parts_per_million(name: str) -> None:
    assert total(name) == pytest.approx(NEARLY_EXACT[name], rel=2e-6)


@pytest.mark.parametrize("name", CARDS)
def test_model_cards_are_met_within_one_percent_and_active_ones_within_their_rounding(name: str) -> None:
    card, active, tables = CARDS[name]
    count = parameter_count(load_model(name))
    assert count.total == pytest.approx(card, rel=0.01)
    if active is not None:
        mine = count.active - tables * count.embedding
        rounding = 0.5e9 if active >= 10e9 else 0.05e9
        assert mine == pytest.approx(active, abs=max(rounding, 0.035 * active))


@pytest.mark.parametrize("name", NAMES)
def test_names_are_met_within_three_percent(name: str) -> None:
    assert total(name) == pytest.approx(NAMES[name], rel=0.03)


def test_at_least_twenty_models_are_bundled_and_every_one_is_complete() -> None:
    assert len(list_models()) >= 20
    for name in list_models():
        model = load_model(name)
        assert model.id == name
        assert model.vocab > 0
        assert model.max_position > 0
        assert model.hidden > 0
        assert len(model.order) == model.n_layers
        assert all(group.norm_params > 0 for group in model.layers), name
        assert not any("unknown" in note or "not given" in note for note in model.notes), name


def test_every_bundled_count_is_within_three_percent_of_what_its_file_states() -> None:
    for name in list_models():
        published = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))["published"]
        assert total(name) == pytest.approx(published["params"], rel=0.03), name
        assert published["source"]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama_3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("Qwen/Qwen3-14B", "qwen3-14b"),
        ("qwen2.5-7b-instruct", "qwen2.5-7b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo"),
        ("openai/GPT-OSS-120B", "gpt-oss-120b"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "llama-4-scout-fp8-dynamic"),
    ],
)
def test_a_model_answers_to_its_usual_names(written: str, found: str) -> None:
    assert load_model(written).id == found


def test_no_two_models_share_a_name() -> None:
    owners: dict[str, str] = {}
    for name in list_models():
        for alias in (name, *model_aliases(MODELS / f"{name}.json")):
            plain = alias.lower().replace("-", "").replace("_", "")
            assert owners.setdefault(plain, name) == name, alias


def test_an_unknown_model_is_one_line_with_the_nearest() -> None:
    with pytest.raises(CatalogError, match="nearest: 'qwen3-14b'") as caught:
        load_model("qwen3-15b", where="chat.yaml")
    assert "\n" not in str(caught.value)
    assert "chat.yaml" in str(caught.value)


def test_a_path_to_a_config_or_to_its_folder_is_a_model(tmp_path: Path) -> None:
    entry = json.loads((MODELS / "qwen3-8b.json").read_text(encoding="utf-8"))
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(entry["config"]))
    for written in (folder, folder / "config.json"):
        model = load_model(written)
        assert model.id == "my-model"
        assert parameter_count(model).total == EXACT["qwen3-8b"]
    assert load_model("my-model", relative_to=tmp_path).id == "my-model"
    assert load_model("my-model/config.json", relative_to=tmp_path).id == "my-model"


def test_kinds_of_attention_and_experts_are_what_the_models_are_known_for() -> None:
    latent = load_model("deepseek-v3").layers[1]
    assert isinstance(latent.mixer, MultiHeadLatentAttention)
    assert latent.mixer.kv_lora_rank + latent.mixer.qk_rope_head_dim == 576
    assert isinstance(latent.ffn, MoEFFN)
    assert (latent.ffn.n_experts, latent.ffn.top_k, latent.ffn.shared_intermediate) == (256, 8, 2048)

    windows = {
        g.mixer.window: g.count for g in load_model("gemma-3-27b").layers if isinstance(g.mixer, Attention)
    }
    assert windows == {1024: 52, 0: 10}

    oss = load_model("gpt-oss-120b")
    assert [
        (g.count, g.mixer.window, g.mixer.sinks) for g in oss.layers if isinstance(g.mixer, Attention)
    ] == [
        (18, 128, True),
        (18, 0, True),
    ]
    kinds = [(type(g.mixer), g.count) for g in load_model("qwen3-next-80b-a3b").layers]
    assert kinds == [(Recurrent, 36), (Attention, 12)]

    chunks = [
        (g.mixer.window, g.mixer.chunked, g.count)
        for g in load_model("llama-4-scout").layers
        if isinstance(g.mixer, Attention)
    ]
    assert chunks == [(8192, True, 36), (0, False, 12)]


def test_checkpoints_name_what_they_quantise() -> None:
    def quantised(name: str) -> dict[str, set[bool]]:
        found: dict[str, set[bool]] = {"mixer": set(), "experts": set()}
        for group in load_model(name).layers:
            if group.mixer:
                found["mixer"] |= {linear.quantized for linear in group.mixer.linears}
            if isinstance(group.ffn, MoEFFN):
                found["experts"] |= {linear.quantized for linear in group.ffn.expert_linears}
        return found

    assert quantised("gpt-oss-20b") == {"mixer": {False}, "experts": {True}}
    assert quantised("kimi-k2.5") == {"mixer": {False}, "experts": {True}}
    assert quantised("llama-4-scout-fp8-dynamic") == {"mixer": {False}, "experts": {True}}
    assert quantised("deepseek-v3") == {"mixer": {True}, "experts": {True}}
