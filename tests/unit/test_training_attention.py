"""Attention's options: documents that do not see each other, norms of query and key heads."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stoker.training.model.attention import Attention, DocumentMask, Documents, Sight, attend, rotary_tables
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from support.models import SHAPE, make_model

EOT = 7
MASKED = replace(SHAPE, width=32, document_mask=True)
# The first window begins in the middle of a document; the second has an empty document; the third is one.
BEGINS = ((9, 20), (0, 5, 6, 31), ())


def make() -> Model:
    model = make_model(MASKED)
    with torch.no_grad():  # a model that is not yet trained attends to all alike
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim == 2 else 1.0)
    return model


def windows() -> Tensor:
    ids = torch.randint(8, 50, (len(BEGINS), 32), generator=torch.Generator().manual_seed(3))
    for row, begins in zip(ids, BEGINS, strict=True):
        row[list(begins)] = EOT
    return ids


def test_a_masked_window_has_the_logits_of_each_document_alone() -> None:
    model, ids = make(), windows()
    plain = model(ids)
    model.mask = DocumentMask(EOT, varlen=False)
    masked = model(ids)
    model.mask = None
    for row, begins in enumerate(BEGINS):
        bounds = [*sorted({0, *begins}), 32]
        alone = [model(ids[row : row + 1, a:b]) for a, b in itertools.pairwise(bounds)]
        assert torch.allclose(masked[row], torch.cat(alone, dim=1)[0], atol=1e-5)
    assert torch.allclose(plain[2], masked[2], atol=1e-5)
    assert not torch.allclose(plain[0, 9:], masked[0, 9:], atol=1e-2)


def test_packed_documents_begin_at_each_window_and_each_end_of_text() -> None:
    starts = DocumentMask(EOT, varlen=True)(windows()).starts
    assert starts is not None and starts.dtype == torch.int32
    assert starts.tolist() == [0, 9, 20, 32, 37, 38, 63, 64] + 8 * [96]


@pytest.mark.gpu
def test_packed_attention_on_a_card_equals_the_dense_mask_on_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    q, k, v = (torch.randn(3, heads, 32, 16).bfloat16() for heads in (4, 2, 2))
    dense = attend(q.float(), k.float(), v.float(), DocumentMask(EOT, varlen=False)(windows()))
    packed = DocumentMask(EOT, varlen=True)(windows().cuda())
    found = attend(q.cuda(), k.cuda(), v.cuda(), packed).float().cpu()
    assert torch.allclose(found, dense, atol=2e-2)  # of bfloat16


def test_normed_heads_do_not_hang_on_the_size_of_queries_and_keys() -> None:
    shape = replace(MASKED, qk_norm=True)
    attention = Attention(shape)
    x = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(4))
    sight = Sight(*rotary_tables(8, 8, 10000.0))
    before = attention(x, sight)
    q, k, _ = attention.project(x, sight)
    assert torch.allclose(q.square().mean(-1), torch.ones(2, 4, 8), atol=1e-2)
    assert torch.allclose(k.square().mean(-1), torch.ones(2, 2, 8), atol=1e-2)
    with torch.no_grad():
        attention.qkv.weight[: (4 + 2) * 8] *= 100.0
    assert torch.allclose(attention(x, sight), before, atol=1e-3)
    names = dict(Model(shape).named_parameters())
    assert names["blocks.1.attention.q_norm.weight"].shape == (8,)
    assert names["blocks.1.attention.k_norm.weight"].shape == (8,)


def test_attention_without_documents_is_causal() -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(5)).unbind()
    one = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    assert torch.allclose(attend(q, k, v, None), attend(q, k, v, Documents(allowed=one)), atol=1e-5)


def test_a_model_without_the_later_keys_does_not_name_them() -> None:
    assert not {"qk_norm", "document_mask"} & SHAPE.body().keys()
    for shape in (SHAPE, MASKED, replace(SHAPE, qk_norm=True, tie_embeddings=True)):
        assert Shape.parse(shape.body(), vocab_size=50, seq_len=32) == shape
