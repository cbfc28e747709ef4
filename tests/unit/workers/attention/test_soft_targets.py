"""Hard and soft losses and their gradients against autograd of torch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workers.attention import soft_targets


def _expected(logits: Tensor, teacher: Tensor, ids: Tensor, vocabulary: int) -> tuple[list[Tensor], list[Tensor]]:
    logits = logits.clone().requires_grad_()
    known, target = logits[:, :-1, :vocabulary].transpose(1, 2), teacher[:, :-1, :vocabulary].softmax(-1)
    losses = [
        F.cross_entropy(known, ids[:, 1:], reduction="none"),
        F.cross_entropy(known, target.transpose(1, 2), reduction="none"),
    ]
    gradients = [torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0] for loss in losses]
    return [loss.detach() for loss in losses], gradients


@pytest.mark.parametrize(("mine", "theirs"), [(17, 17), (17, 19), (20, 17)])
@pytest.mark.parametrize("chunk", [1, 3 * 17, 2**21])
def test_losses_and_gradients_are_those_of_cross_entropy(mine: int, theirs: int, chunk: int, monkeypatch) -> None:
    """Over the tokens that both models know; the gradient at the others is 0."""
    monkeypatch.setattr(soft_targets, "CHUNK", chunk)
    vocabulary = min(mine, theirs)
    logits, teacher = torch.randn(3, 7, mine).double(), torch.randn(3, 7, theirs).double()
    ids = torch.randint(vocabulary, (3, 7))
    (hard, soft), (hard_gradient, soft_gradient) = _expected(logits, teacher, ids, vocabulary)
    kept = teacher.clone()
    losses, gradient = soft_targets.soft_gradient_(logits, teacher, ids, vocabulary)
    torch.testing.assert_close(losses.hard, hard)
    torch.testing.assert_close(losses.soft, soft)
    p = teacher[:, :-1, :vocabulary].softmax(-1)
    torch.testing.assert_close(losses.divergence, soft + (p * p.log()).sum(-1))
    assert gradient.data_ptr() == logits.data_ptr()
    torch.testing.assert_close(gradient, soft_gradient)
    gradient = soft_targets.hard_gradient_(gradient, teacher, ids, vocabulary)
    assert gradient.data_ptr() == logits.data_ptr()
    torch.testing.assert_close(gradient, hard_gradient)
    assert torch.equal(teacher, kept)


def test_losses_of_single_predictions_are_the_same() -> None:
    logits, teacher = torch.randn(1, 7, 17).double(), torch.randn(1, 7, 19).double()
    ids = torch.randint(17, (1, 7))
    (hard, soft), _ = _expected(logits, teacher, ids, 17)
    found = soft_targets.losses_of_rows(logits[0, :-1], teacher[0, :-1], ids[0, 1:], 17)
    torch.testing.assert_close(found, (hard[0], soft[0]))


def test_a_teacher_that_agrees_leaves_no_soft_gradient_whatever_the_dtype() -> None:
    logits = (5 * torch.randn(1, 6, 300)).bfloat16()
    losses, gradient = soft_targets.soft_gradient_(logits.clone(), logits, torch.randint(300, (1, 6)), 300)
    assert (gradient == 0).all()
    assert (losses.divergence == 0).all()


def test_bfloat16_gradients_are_rounded_once_and_twice() -> None:
    """To 8 bits: the soft gradient by 2⁻⁸ of itself. The hard one is made from it, and rounded again."""
    generator = torch.Generator().manual_seed(0)
    logits, teacher = (5 * torch.randn(2, 1, 6, 300, generator=generator)).bfloat16()
    ids = torch.randint(300, (1, 6), generator=generator)
    _, (hard, soft) = _expected(logits.double(), teacher.double(), ids, 300)
    _, gradient = soft_targets.soft_gradient_(logits.clone(), teacher, ids, 300)
    assert ((gradient.double() - soft).abs() <= 1.001 * 2**-8 * soft.abs() + 1e-9).all()  # and float32 before
    found = soft_targets.hard_gradient_(gradient, teacher, ids, 300)
    assert ((found.double() - hard).abs() <= 1.01 * 2**-8 * (soft.abs() + hard.abs()) + 1e-9).all()
