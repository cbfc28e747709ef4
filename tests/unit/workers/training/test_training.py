"""The trainer: the same trajectory however it is cut, against a loop written by hand, and what it tells when."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM, GPT2Config

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_model_source
from services.sources.file_identity import folder_sha256
from tests.unit.workers.data.tokenizers_for_tests import byte_tokenizer
from tests.unit.workers.training.small_runs import (
    MODEL,
    Told,
    assert_equal_weights,
    parameters,
    small_data,
    trained,
    trainer,
)
from workers.models.loading import load_folder
from workers.models.staging import folder_of_this_process
from workers.models.tokenizer import tokenizer_sha256
from workers.training import start, state
from workers.training.data import sequences_of_step
from workers.training.divergence import DivergedError
from workers.training.training import DueCheckpoint


def test_the_loss_curve_is_that_of_a_plain_loop_written_by_hand() -> None:
    """transformers' own attention and loss, one batch a step, torch's AdamW: nothing of ours but the data."""
    asked = parameters(steps=12, batch=3, validation={"log_every": 1, "every": 100, "spectra": False})
    _, told = trained(asked)

    own = start.from_configuration(parse_model_source(MODEL), asked.seed, "cpu")
    config = GPT2Config.from_dict(own.config.to_dict())
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    model.load_state_dict(own.state_dict())
    model.train()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "wte" not in name and "wpe" not in name]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3,
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    losses, norms = {}, {}
    for step in range(12):
        tokens = torch.from_numpy(sequences_of_step(small_data(), asked, step).astype("int64"))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norms[step + 1] = float(clip_grad_norm_(model.parameters(), 1.0))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * asked.schedule.factor(step, 12)
        optimizer.step()
        optimizer.zero_grad()
        losses[step + 1] = loss.item()
    # float32: losses of size 4 are rounded by 5e-7, and twelve steps of Adam turn rounding into about ten times that
    assert told.curve("loss_nats") == pytest.approx(losses, abs=1e-5)
    assert told.curve("gradient_norm") == pytest.approx(norms, rel=1e-4)
    assert losses[12] < losses[1] - 0.05  # it learns at all


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_gradients_that_add_up_over_passes_are_those_of_one_large_batch(batch: int) -> None:
    whole, _ = trained(parameters(steps=1, batch=8, clip=None))
    cut, _ = trained(parameters(steps=1, batch=batch, clip=None))
    for name, parameter in whole.model.named_parameters():
        other = cut.model.get_parameter(name).grad
        assert parameter.grad is not None
        assert other is not None
        # sums of 248 float32 terms in another order
        torch.testing.assert_close(other, parameter.grad, rtol=1e-4, atol=1e-7)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    one, told = trained(parameters())
    again, told_again = trained(parameters())
    assert_equal_weights(one, again)
    assert told.comparable() == told_again.comparable()
    other, _ = trained(parameters(seed=1))
    assert not torch.equal(one.model.get_input_embeddings().weight, other.model.get_input_embeddings().weight)


VARIANTS: list[dict[str, Any]] = [
    {},
    {"optimizer": {"name": "sgd", "learning_rate": 0.05}},
    {"optimizer": "muon"},
    {"variants": ["sigma_reparam", "qk_norm"]},
    {"variants": ["shared_softmax"]},
    {"variants": ["sigmoid"]},
    {"variants": ["natq"]},
    {"dtype": "bfloat16"},
]


@pytest.mark.parametrize("changed", VARIANTS, ids=str)
@pytest.mark.parametrize("stop", [1, 7])
def test_a_run_made_again_from_its_state_goes_on_bit_for_bit(
    changed: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    asked = parameters(**changed)
    undisturbed, told = trained(asked)
    first, before = trainer(asked), Told()
    first.begin(before)
    first.advance(stop, before)
    first.write_state(tmp_path / state.FILE, {"threads": 1})

    resumed, after = trainer(asked), Told()
    assert resumed.resume(tmp_path / state.FILE) == {"threads": 1}
    assert resumed.step == stop
    resumed.advance(asked.steps, after)
    assert_equal_weights(undisturbed, resumed)
    assert [*before.comparable(), *after.comparable()] == told.comparable()
    assert [*before.matrices, *after.matrices] == told.matrices


def test_it_goes_on_from_the_middle_whatever_the_segments_are() -> None:
    whole, _ = trained(parameters())
    cut = trainer(parameters())
    cut.begin(Told())
    for stop in (2, 3, 9, 12):
        assert cut.advance(stop, Told()).step == stop
    assert_equal_weights(whole, cut)


def test_checkpoints_are_due_at_their_steps_and_the_best_is_the_lowest_so_far() -> None:
    asked = parameters(
        steps=12,
        checkpoints={"every": 5, "log_spaced": True, "steps": [3, 12]},
        validation={"every": 4, "log_every": 5},
    )
    _, told = trained(asked)
    reasons = {one.step: set(one.reasons) - {"best"} for one in told.checkpoints}
    assert reasons == {
        0: {"first"},
        1: {"log"},
        2: {"log"},
        3: {"asked"},
        4: {"log"},
        5: {"interval"},
        8: {"log"},
        10: {"interval"},
        12: {"asked", "last"},
    }
    losses = told.curve("validation_loss_nats")
    assert list(losses) == [0, 4, 8, 12]
    lowest: list[int] = []
    for step, loss in losses.items():
        if all(loss < losses[earlier] for earlier in lowest):
            lowest.append(step)
    assert [one.step for one in told.checkpoints if "best" in one.reasons] == lowest
    assert {one.step: one.validation_loss_nats for one in told.checkpoints if one.step in losses} == losses


def test_rows_are_told_at_their_steps() -> None:
    _, told = trained(parameters(steps=11, validation={"every": 5, "log_every": 4, "attention_sequences": 2}))
    for name in ("loss_nats", "gradient_norm", "learning_rate", "tokens_per_s"):
        assert list(told.curve(name)) == [1, 4, 8, 11]
    for name in ("validation_loss_nats", "validation_bits_per_byte", "entropy_nats"):
        assert list(told.curve(name)) == [0, 5, 10, 11]
    assert {row.step for row in told.matrices} == {0, 5, 10, 11}
    assert all((row.update_sigma is None) == (row.step == 0) for row in told.matrices)
    assert told.steps == list(range(1, 12))


def test_what_is_switched_off_is_not_measured() -> None:
    _, told = trained(parameters(validation={"attention_sequences": 0, "spectra": False}))
    assert told.curve("entropy_nats") == {}
    assert told.matrices == []


def test_the_gradient_is_clipped_to_its_limit() -> None:
    made, told = trained(parameters(steps=1, clip=0.01))
    assert told.curve("gradient_norm")[1] > 0.1
    clipped = torch.stack([p.grad.norm() for p in made.model.parameters() if p.grad is not None]).norm()
    assert float(clipped) == pytest.approx(0.01, rel=1e-3)  # torch adds 1e-6 to the norm


def test_a_loss_that_is_no_number_ends_the_run_before_anything_of_it_is_told() -> None:
    made, told = trainer(parameters(checkpoints={"every": 3})), Told()
    made.begin(told)
    made.advance(3, told)
    with torch.no_grad():
        made.model.get_input_embeddings().weight[:] = torch.nan
    with pytest.raises(DivergedError) as ended:
        made.advance(12, told)
    assert (ended.value.step, ended.value.sound_step) == (4, 3)
    assert "loss is nan" in ended.value.what
    assert max(one.step for one in told.checkpoints) <= 3


def test_the_plain_model_that_is_written_computes_what_was_trained(tmp_path: Path) -> None:
    """Also where weights are reparametrised: transformers' own loading and attention on the files."""
    made, _ = trained(parameters(variants=["sigma_reparam"]))
    files = made.write_model(tmp_path, None)
    assert sorted(files) == ["config.json", "model.safetensors"]
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokens = torch.from_numpy(small_data().validation.astype("int64"))
    made.model.eval()
    with torch.no_grad():
        # float32 logits of size 1 over two layers
        torch.testing.assert_close(plain(tokens).logits, made.model(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("template", ["{{ messages }}", {"default": "{{ messages }}", "tools": ""}], ids=type)
def test_what_is_stored_of_a_tokenizer_with_chat_templates_is_the_model_that_is_loaded(
    template: Any, tmp_path: Path
) -> None:
    """save_pretrained writes templates into files, or a folder, of which the digest of a model knows nothing."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    asked = parameters(steps=1)
    wide = MODEL.replace("vocabulary=64", "vocabulary=300")
    (tmp_path / "written").mkdir()
    files = trainer(asked, wide).write_model(tmp_path / "written", tokenizer)
    assert set(files) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    stored = tmp_path / "stored"
    stored.mkdir()
    for name, path in files.items():
        path.rename(stored / name)
    loaded = load_folder(stored, device="cpu", dtype="float32", settings=Settings(home=tmp_path))
    assert loaded.identity == f"sha256:{folder_sha256(stored, list(files))}"
    assert loaded.tokenizer is not None
    assert tokenizer_sha256(loaded.tokenizer) == tokenizer_sha256(tokenizer)


def test_a_state_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    made = trainer(parameters())
    made.write_state(tmp_path / state.FILE, {})
    other = trainer(parameters(), MODEL.replace("layers=2", "layers=3"))
    with pytest.raises(KeyholeError, match=r"transformer\.h\.2") as refused:
        other.resume(tmp_path / state.FILE)
    assert refused.value.code is ErrorCode.MODEL_REFUSED


def test_a_sink_may_take_the_checkpoint_at_a_segments_end_itself() -> None:
    made, told = trainer(parameters(checkpoints={"every": 4})), Told()
    made.begin(told)
    due = made.advance(4, told)
    assert due == DueCheckpoint(4, ("interval",), None)
    assert [one.step for one in told.checkpoints] == [0]


def test_the_folder_of_a_process_is_its_own(tmp_path: Path) -> None:
    with folder_of_this_process(tmp_path) as one, folder_of_this_process(tmp_path) as other:
        assert one != other
    assert not one.exists()
