"""Validation loss against float64 log-probabilities of every token, and bits per byte by hand."""

import math

import pytest
import torch

from tests.unit.workers.training.small_runs import VOCABULARY, parameters, small_data, trainer
from workers.training.ranks import Ranks
from workers.training.validation import bits_per_byte, validation_loss_nats


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_the_loss_is_the_mean_of_minus_log_p_over_every_predicted_token(batch: int) -> None:
    made, data = trainer(parameters()), small_data()
    found = validation_loss_nats(made.model, data.validation, batch=batch, device="cpu", dtype="float32", ranks=Ranks())
    terms = []
    with torch.no_grad():
        for sequence in data.validation.tolist():
            logits = made.model(torch.tensor([sequence])).logits[0].double()
            for position, token in enumerate(sequence[1:]):
                row = logits[position]
                terms.append(float(torch.logsumexp(row, 0) - row[token]))
    assert len(terms) == 8 * 31
    assert found == pytest.approx(sum(terms) / len(terms), rel=1e-6)  # sums of at most 248 float32 terms
    assert found == pytest.approx(math.log(VOCABULARY), abs=0.3)  # a new model knows next to nothing


def test_bits_per_byte_of_a_text_whose_every_byte_is_a_token_that_costs_one_bit() -> None:
    assert bits_per_byte(math.log(2), 100, 100) == pytest.approx(1.0)
    # 10 tokens of 3 bits each for a text of 15 bytes
    assert bits_per_byte(3 * math.log(2), 10, 15) == pytest.approx(2.0)
