"""Losses and their gradient against autograd of torch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F

from workers.attention import next_token


@pytest.mark.parametrize("credit", ["sequence", "own_token"])
@pytest.mark.parametrize("chunk", [1, 3 * 17, 2**21])
def test_losses_and_gradient_are_those_of_cross_entropy(credit, chunk, monkeypatch) -> None:
    monkeypatch.setattr(next_token, "CHUNK", chunk)
    logits = torch.randn(3, 7, 17, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(17, (3, 7))
    expected = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    total = (expected.mean(1) if credit == "sequence" else expected.sum(1)).sum()
    (expected_gradient,) = torch.autograd.grad(total, logits)
    losses, gradient = next_token.next_token_losses_(logits.detach().clone(), ids, credit)
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-7, rtol=0)  # the weight 1/6 is held in float32


def test_bfloat16_logits_are_softmaxed_in_float32() -> None:
    logits = (10 * torch.randn(1, 5, 1000)).bfloat16()
    ids = torch.randint(1000, (1, 5))
    exact = F.cross_entropy(logits[0, :-1].double(), ids[0, 1:], reduction="none")
    losses, gradient = next_token.next_token_losses_(logits.clone(), ids, "own_token")
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(losses[0].double(), exact, rtol=1e-6, atol=1e-6)


def test_the_gradient_takes_the_place_of_the_logits() -> None:
    logits = torch.randn(1, 4, 9)
    _, gradient = next_token.next_token_losses_(logits, torch.randint(9, (1, 4)), "sequence")
    assert gradient.data_ptr() == logits.data_ptr()
    assert (gradient[:, -1] == 0).all()
