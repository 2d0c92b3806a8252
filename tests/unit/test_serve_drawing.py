"""The quick cuts leave the same tokens as the library's own."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("seed", range(3))
def test_the_quick_cuts_are_those_of_the_library(seed: int) -> None:
    from transformers.generation.continuous_batching import cb_logits_processors as theirs
    from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

    from stoker.serve.drawing import TopK, TopP, cut_quickly

    own = [
        theirs.ContinuousBatchingTopKLogitsWarper(TopKLogitsWarper(1)),
        theirs.ContinuousBatchingTopPLogitsWarper(TopPLogitsWarper(0.5)),
    ]
    quick = list(own)
    cut_quickly(quick)
    assert [type(one) for one in quick] == [TopK, TopP]
    scores = torch.randn(6, 40, generator=torch.Generator().manual_seed(seed))
    scores[:, 7] = scores[:, 8]  # the same likelihood
    top_k = torch.tensor(
        [1, 40, 5, 39, 2, 40, 0], dtype=torch.int32
    )  # longer than the batch, as in the engine
    top_p = torch.tensor([1.0, 1.0, 0.5, 0.9, 0.01, 0.7, 0.0]).view(torch.int32)
    for arguments in ((top_k, top_p), (torch.full_like(top_k, 40), torch.ones(7).view(torch.int32))):
        for mine, reference, argument in zip(quick, own, arguments, strict=True):
            assert torch.equal(mine(scores, argument), reference(scores, argument))
