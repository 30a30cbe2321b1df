from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from lopa.export.adapter import Adapter, open_adapter
from lopa.export.adapter_config import AdapterError
from lopa.export.families import FAMILIES
from lopa.export.source import ModelSource, open_source
from lopa.export.weights import base_model
from safetensors.torch import save_file

from .tiny_checkpoint import TARGETS, edit_json, read_tensors, write_adapter, write_checkpoint

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DOWN = "model.layers.1.mlp.down_proj"
PREFIX = "base_model.model."


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "base")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "adapter"


def merged(source: ModelSource, canonical: str, module: str, scale: float) -> None:
    """Assert that a merged weight equals W + scale B A, computed here."""
    assert source.adapter is not None
    base = source.checkpoint.read(f"{module}.weight")
    update = source.adapter.updates[f"{module}.weight"]
    saved = read_tensors(update.factor_a.file)
    product = saved[update.factor_b.name] @ saved[update.factor_a.name]
    assert update.scale == pytest.approx(scale)
    torch.testing.assert_close(source.weights.read(canonical), (base + scale * product).T)
    assert (product * scale).abs().max() > 1e-3


def faults_of(checkpoint: Path, folder: Path) -> tuple[str, ...]:
    with pytest.raises(AdapterError) as caught:
        open_source(checkpoint, folder)
    assert "\n" not in str(caught.value)
    return caught.value.faults


def rewrite(folder: Path, added: Mapping[str, torch.Tensor] | None = None, drop: str = "") -> None:
    """Drop tensors whose name contains `drop` (if given) and add others."""
    tensors = read_tensors(folder / WEIGHTS)
    kept = {name: value for name, value in tensors.items() if not drop or drop not in name}
    save_file(
        {name: value.clone() for name, value in kept.items()} | dict(added or {}), folder / WEIGHTS
    )


def test_every_target_is_merged(checkpoint: Path, folder: Path) -> None:
    source = open_source(checkpoint, write_adapter(folder, checkpoint, rank=4, alpha=8))
    assert source.adapter is not None
    assert len(source.adapter.updates) == 2 * len(TARGETS)
    merged(source, "layers.1.down.weight", DOWN, 2.0)
    merged(source, "layers.0.key.weight", "model.layers.0.self_attn.k_proj", 2.0)
    plain = open_source(checkpoint)
    for name in ("embed", "head", "layers.0.query.bias", "final_norm"):
        assert torch.equal(source.weights.read(name), plain.weights.read(name))


def test_golden_adapter(golden: Path) -> None:
    folder = golden / "checkpoints"
    source = open_source(folder / "dream-tiny", folder / "d2f-dream-lora-tiny")
    assert source.adapter is not None
    assert len(source.adapter.updates) == 3 * len(TARGETS)
    for layer in range(3):
        for canonical, module in (("query", "self_attn.q_proj"), ("up", "mlp.up_proj")):
            merged(
                source, f"layers.{layer}.{canonical}.weight", f"model.layers.{layer}.{module}", 4
            )
    assert source.source.adapter == "d2f-dream-lora-tiny"
    assert source.source.adapter_fingerprint == source.adapter.fingerprint


def test_rslora_and_patterns(checkpoint: Path, folder: Path) -> None:
    write_adapter(
        folder,
        checkpoint,
        use_rslora=True,
        rank_pattern={"layers.1.mlp.down_proj": 9},
        alpha_pattern={r"layers\.\d+\.mlp\.(down|up)_proj": 6},
    )
    source = open_source(checkpoint, folder)
    merged(source, "layers.1.down.weight", DOWN, 6 / math.sqrt(9))
    merged(source, "layers.0.down.weight", "model.layers.0.mlp.down_proj", 6 / math.sqrt(4))
    merged(source, "layers.0.gate.weight", "model.layers.0.mlp.gate_proj", 8 / math.sqrt(4))


def test_pattern_keys_match_whole_name_endings(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, alpha_pattern={"own_proj": 100, "^mlp.up_proj": 100})
    source = open_source(checkpoint, folder)
    merged(source, "layers.1.down.weight", DOWN, 2.0)
    merged(source, "layers.1.up.weight", "model.layers.1.mlp.up_proj", 2.0)


def test_fan_in_fan_out_is_ignored_for_linear_layers(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, fan_in_fan_out=True)
    merged(open_source(checkpoint, folder), "layers.1.down.weight", DOWN, 2.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": r".*\.mlp\.(down|up)_proj"},
        {"target_modules": ["mlp.down_proj", "up_proj"]},
        {"target_modules": ["down_proj", "up_proj", "q_proj"], "exclude_modules": ["q_proj"]},
    ],
)
def test_ways_to_name_targets(checkpoint: Path, folder: Path, changes: dict[str, Any]) -> None:
    write_adapter(folder, checkpoint, targets=("down_proj", "up_proj"), **changes)
    merged(open_source(checkpoint, folder), "layers.1.down.weight", DOWN, 2.0)


def test_all_linear_leaves_embedding_and_head(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, target_modules="all-linear")
    source = open_source(checkpoint, folder)
    assert source.adapter is not None
    assert len(source.adapter.updates) == 2 * len(TARGETS)


def test_layers_to_transform(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, layers_to_transform=[1])
    rewrite(folder, drop="layers.0.")
    merged(open_source(checkpoint, folder), "layers.1.down.weight", DOWN, 2.0)


@pytest.mark.parametrize("prefix", ["base_model.model.", "base_model.model", ""])
def test_name_prefixes(checkpoint: Path, folder: Path, prefix: str) -> None:
    write_adapter(folder, checkpoint, prefix="" if prefix == "" else PREFIX)
    if prefix == "base_model.model":  # trained on the bare body: "model." is not doubled
        tensors = read_tensors(folder / WEIGHTS)
        renamed = {n.replace("model.model.", "model.", 1): t for n, t in tensors.items()}
        assert "base_model.model.layers.1.mlp.down_proj.lora_A.weight" in renamed
        save_file(renamed, folder / WEIGHTS)
    merged(open_source(checkpoint, folder), "layers.1.down.weight", DOWN, 2.0)


def test_embedding_update(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, target_modules=[*TARGETS, "embed_tokens"])
    first, second = torch.randn(4, 320), torch.randn(64, 4)
    name = f"{PREFIX}model.embed_tokens.lora_embedding_"
    rewrite(folder, {f"{name}A": first, f"{name}B": second})
    source = open_source(checkpoint, folder)
    expected = source.checkpoint.read("model.embed_tokens.weight") + 2 * (second @ first).T
    torch.testing.assert_close(source.weights.read("embed"), expected)


def test_modules_to_save_replace(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, saved=["lm_head", "input_layernorm"])
    source = open_source(checkpoint, folder)
    saved = read_tensors(folder / WEIGHTS)
    assert torch.equal(source.weights.read("head"), saved[f"{PREFIX}lm_head.weight"].T)
    norm = saved[f"{PREFIX}model.layers.1.input_layernorm.weight"]
    assert torch.equal(source.weights.read("layers.1.attention_norm"), norm)
    merged(source, "layers.1.down.weight", DOWN, 2.0)


def test_trained_biases_are_taken(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, bias="lora_only")
    assert (
        "bias is 'lora_only' but model.layers.0.self_attn.k_proj.bias"
        in (faults_of(checkpoint, folder)[0])
    )
    biases = {
        f"{PREFIX}model.layers.{layer}.self_attn.{name}_proj.base_layer.bias": torch.randn(size)
        for layer in range(2)
        for name, size in (("q", 64), ("k", 32), ("v", 32))
    }
    rewrite(folder, biases)
    source = open_source(checkpoint, folder)
    expected = biases[f"{PREFIX}model.layers.1.self_attn.q_proj.base_layer.bias"]
    assert torch.equal(source.weights.read("layers.1.query.bias"), expected)


def test_biases_without_consent(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint)
    rewrite(folder, {f"{PREFIX}model.layers.0.self_attn.q_proj.bias": torch.ones(64)})
    assert "saved in full but named by neither" in faults_of(checkpoint, folder)[0]


def test_adapter_of_a_model_with_other_names(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, base_model_name_or_path="other")
    tensors = read_tensors(folder / WEIGHTS)
    save_file({n.replace("layers", "blocks"): t for n, t in tensors.items()}, folder / WEIGHTS)
    (fault,) = faults_of(checkpoint, folder)
    assert "none of its 28 tensors fits the base model" in fault
    assert "made for 'other'" in fault


def test_adapter_of_a_larger_model(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    larger = write_checkpoint(tmp_path / "larger", layers=3, hidden=32)
    faults = faults_of(checkpoint, write_adapter(folder, larger, base_model_name_or_path="big"))
    assert f"{PREFIX}model.layers.2.mlp.down_proj.lora_A.weight" in faults[0]
    assert "lora_A.weight is [4, 32], expected [4, 64]" in faults[1]
    assert "made for 'big'" in faults[2]


def test_all_tensor_faults_in_one_error(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, target_modules=[*TARGETS, "router"])
    rewrite(folder, drop="layers.0.mlp.up_proj")
    rewrite(folder, drop="layers.0.mlp.down_proj.lora_B")
    rewrite(
        folder,
        {
            f"{PREFIX}{DOWN}.lora_A.weight": torch.ones(3, 128),
            f"{PREFIX}{DOWN}.lora_magnitude_vector": torch.ones(64),
            f"{PREFIX}lm_head.lora_A.weight": torch.ones(4, 64),
            f"{PREFIX}model.layers.9.mlp.up_proj.lora_A.weight": torch.ones(4, 64),
        },
    )
    text = "; ".join(faults_of(checkpoint, folder))
    for part in (
        "target_modules covers model.layers.0.mlp.up_proj, which have no LoRA tensors",
        "model.layers.0.mlp.down_proj has lora_A but no lora_B",
        "down_proj.lora_A.weight is [3, 128], expected [4, 128]",
        "lora_magnitude_vector is no plain LoRA factor",
        "lm_head has LoRA tensors but is not in target_modules",
        "lm_head has lora_A but no lora_B",
        "fit no module of the base: base_model.model.model.layers.9.mlp.up_proj.lora_A.weight",
        "target_modules names router, not in the base model",
    ):
        assert part in text


def test_module_both_saved_and_adapted(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, modules_to_save=["lm_head", "norm"])
    head = {f"{PREFIX}lm_head.lora_A.weight": torch.ones(4, 64)}
    rewrite(folder, {**head, f"{PREFIX}lm_head.weight": torch.ones(320, 64)})
    text = "; ".join(faults_of(checkpoint, folder))
    assert "lm_head is both saved in full and adapted by LoRA" in text
    assert "modules_to_save names norm, but none of its tensors is saved" in text


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', only 'LORA'"),
        ({"use_dora": True}, "use_dora is True, which lopa cannot merge"),
        ({"lora_bias": True}, "lora_bias is True, which lopa cannot merge"),
        ({"trainable_token_indices": [3]}, r"trainable_token_indices is \[3\]"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' changes the base weights"),
        ({"bias": "some"}, "bias is 'some', expected none, lora_only or all"),
        ({"r": 0}, "r is 0, expected a positive integer"),
        ({"lora_alpha": "8"}, "lora_alpha is '8', expected a positive number"),
        ({"rank_pattern": {"q_proj": 1.5}}, r"rank_pattern\['q_proj'\] is 1.5, expected a"),
        ({"alpha_pattern": [1]}, r"alpha_pattern is \[1\], expected module name -> number"),
        ({"target_modules": "(q_proj"}, "target_modules holds an invalid regular expression"),
        ({"target_modules": 3}, "target_modules is 3, expected a list of names or a regular"),
        ({"target_modules": None}, "target_modules is None, expected a list"),
        ({"layers_to_transform": "all"}, "layers_to_transform is 'all', expected layer numbers"),
    ],
)
def test_config_fault(checkpoint: Path, folder: Path, changes: dict[str, Any], fault: str) -> None:
    edit_json(write_adapter(folder, checkpoint) / CONFIG, **changes)
    with pytest.raises(AdapterError, match=fault) as caught:
        open_source(checkpoint, folder)
    assert len(caught.value.faults) == 1


def test_config_and_file_faults_come_together(checkpoint: Path, folder: Path) -> None:
    write_adapter(folder, checkpoint, use_dora=True, bias="x")
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    faults = faults_of(checkpoint, folder)
    assert len(faults) == 3
    assert "adapter_model.bin is a pickle" in faults[2]


def test_missing_and_damaged_files(checkpoint: Path, folder: Path) -> None:
    assert "no such folder" in faults_of(checkpoint, folder)[0]
    folder.mkdir()
    first, second = faults_of(checkpoint, folder)
    assert "adapter_config.json is missing" in first
    assert "adapter_model.safetensors is missing" in second
    write_adapter(folder, checkpoint)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])
    assert "truncated or corrupt" in faults_of(checkpoint, folder)[0]


def test_opens_without_reading_a_checkpoint(checkpoint: Path, folder: Path) -> None:
    spec = open_source(checkpoint).spec
    adapter = open_adapter(write_adapter(folder, checkpoint), base_model(FAMILIES[0], spec))
    assert isinstance(adapter, Adapter)
    assert adapter.replacements == {}
