"""The model: rotations that depend on the lag alone, causality, grouped heads, first values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from stoker.store.errors import ConfigError
from stoker.training.model.attention import KVCache, RMSNorm, rotary_tables, rotate
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from support.models import SHAPE, make_model


@pytest.mark.parametrize("lag", [0, 1, 7, 40])
def test_a_rotated_query_and_key_meet_alike_at_a_lag_wherever_they_stand(lag: int) -> None:
    cos, sin = rotary_tables(128, 32, 10000.0)
    q, k = torch.randn(2, 32, generator=torch.Generator().manual_seed(3))
    at_every = rotate(q.expand(128, 32), cos, sin), rotate(k.expand(128, 32), cos, sin)
    products = (at_every[0][lag:] * at_every[1][: 128 - lag]).sum(dim=1)
    assert torch.allclose(products, products[0].expand_as(products), atol=1e-4)


def test_rotation_tells_lags_apart_and_keeps_lengths() -> None:
    cos, sin = rotary_tables(64, 32, 10000.0)
    x = torch.randn(32, generator=torch.Generator().manual_seed(4))
    turned = rotate(x.expand(64, 32), cos, sin)
    assert torch.allclose(turned.norm(dim=1), x.norm().expand(64), atol=1e-4)
    assert not torch.allclose(turned @ turned[0], (x @ x).expand(64), atol=0.1)


def test_a_rotation_turns_pair_i_by_position_times_its_frequency() -> None:
    cos, sin = rotary_tables(8, 4, 100.0)
    turned = rotate(torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(8, 4), cos, sin)[5]
    assert torch.allclose(turned, torch.tensor([math.cos(5), 0.0, math.sin(5), 0.0]), atol=1e-6)
    turned = rotate(torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(8, 4), cos, sin)[5]
    assert torch.allclose(turned, torch.tensor([0.0, math.cos(0.5), 0.0, math.sin(0.5)]), atol=1e-6)


def test_a_later_token_never_changes_an_earlier_prediction() -> None:
    model = make_model()
    ids = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(5))
    changed = ids.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 50
    before, after = model(ids), model(changed)
    assert torch.allclose(before[:, :12], after[:, :12], atol=1e-5)
    assert not torch.allclose(before[:, 12:], after[:, 12:], atol=1e-3)


def test_grouped_heads_equal_full_attention_with_the_key_value_heads_repeated() -> None:
    grouped, full = make_model(), make_model(kv_heads=4)
    full.load_state_dict(grouped.state_dict() | _repeated(grouped))
    ids = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(6))
    assert torch.allclose(grouped(ids), full(ids), atol=1e-5)


def _repeated(model: Model) -> dict[str, torch.Tensor]:
    repeated = {}
    for name, weight in model.state_dict().items():
        if name.endswith("qkv.weight"):
            q, k, v = weight.view(8, 4, 16).split((4, 2, 2))
            heads = (q, k.repeat_interleave(2, dim=0), v.repeat_interleave(2, dim=0))
            repeated[name] = torch.cat(heads).reshape(48, 16)
    return repeated


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    norm = RMSNorm(4, 0.0)
    assert torch.allclose(norm(torch.tensor([2.0, 2.0, 2.0, 2.0])), torch.ones(4))
    assert torch.allclose(norm(torch.tensor([4.0, 0.0, 0.0, 0.0])), torch.tensor([2.0, 0.0, 0.0, 0.0]))


def test_first_values_follow_the_recipe_and_the_seed_alone() -> None:
    shape = replace(SHAPE, vocab_size=2000, width=64, ffn_width=128, layers=8)
    model, again, other = (make_model(shape, seed=seed) for seed in (1, 1, 2))
    weights = dict(model.named_parameters())
    assert weights["embedding.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert weights["blocks.3.ffn.down.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert weights["blocks.3.attention.out.weight"].std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert torch.equal(weights["norm.weight"], torch.ones(64))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not torch.equal(weights["embedding.weight"], other.embedding.weight)


def test_an_untrained_model_is_as_unsure_as_a_guess() -> None:
    model = make_model()
    windows = torch.randint(0, 50, (8, 21), generator=torch.Generator().manual_seed(7))
    assert model.loss_sum(windows).item() / (8 * 20) == pytest.approx(math.log(50), abs=0.05)
    assert torch.allclose(
        model.loss_by_target(windows).mean(), model.loss_sum(windows).float() / (8 * 20), atol=1e-5
    )


def test_a_tied_head_is_the_embedding() -> None:
    tied, untied = (dict(make_model(tie_embeddings=tied).named_parameters()) for tied in (True, False))
    assert untied.keys() - tied.keys() == {"head.weight"}


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    model = {field: getattr(SHAPE, field) for field in ("layers", "width", "kv_heads", "ffn_width")}
    model |= {"rope_theta": 1e4, "norm_eps": 1e-5, "tie_embeddings": True}
    with pytest.raises(ConfigError, match="heads"):
        Shape.parse(model | {"heads": 3}, vocab_size=50, seq_len=8)
    with pytest.raises(ConfigError, match="lacks heads"):
        Shape.parse(model, vocab_size=50, seq_len=8)


@pytest.mark.parametrize("options", [{}, {"kv_heads": 4, "tie_embeddings": True}, {"qk_norm": True}])
def test_logits_with_kept_keys_and_values_are_those_of_the_whole_context(options: dict[str, Any]) -> None:
    model = make_model(**options)
    ids = torch.randint(0, 50, (1, 32), generator=torch.Generator().manual_seed(1))
    caches = [KVCache(model.shape, torch.device("cpu")) for _ in model.blocks]
    with torch.inference_mode():
        whole = model(ids)[0]
        pieces = [ids[:, :20], *ids[:, 20:].split(1, dim=1)]
        found = torch.stack([model.next_logits(piece, caches) for piece in pieces])
    assert torch.allclose(found, whole[19:], atol=1e-5)
