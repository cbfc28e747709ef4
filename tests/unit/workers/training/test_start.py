"""What a run starts from: a function of the seed, trainable, with nothing random in it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_model_source
from services.sources import resolve_model
from workers.attention import seam
from workers.models.loaded import describe
from workers.training import start

SMALL = {
    "gpt-tiny": "config:gpt-tiny?layers=2&width=32&heads=2&mlp=64&context=32&vocabulary=64",
    **{
        name: f"config:{name}?layers=2&width=32&heads=2&kv_heads=1&d_head=16&mlp=48&context=32&vocabulary=64"
        for name in ("llama", "qwen2", "qwen3")
    },
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "models").mkdir()
    return Settings(home=tmp_path)


def begun(source: str, settings: Settings, seed: int = 0) -> start.Start:
    return start.prepare_start(source, resolve_model(source, settings).identity, seed, "cpu", settings)


@pytest.mark.parametrize("source", SMALL.values(), ids=SMALL)
def test_a_new_model_is_that_of_its_configuration_on_the_seam_and_trainable(source: str, settings: Settings) -> None:
    made = begun(source, settings)
    assert made.model.config._attn_implementation == seam.IMPLEMENTATION
    assert all(weight.requires_grad and weight.dtype == torch.float32 for weight in made.model.parameters())
    architecture = describe(made.model)
    assert (architecture.layers, architecture.d_model, architecture.vocabulary_size) == (2, 32, 64)
    assert made.parity["logit_difference_relative"] < 1e-5
    assert not made.pretrained
    # transformers builds the same shapes from the configuration's config.json
    config = start.configured(parse_model_source(source))
    with torch.device("meta"):
        again = AutoModelForCausalLM.from_config(type(made.model.config)(**config))
    shapes = {name: tensor.shape for name, tensor in again.state_dict().items()}
    assert {name: tensor.shape for name, tensor in made.model.state_dict().items()} == shapes


def test_equal_seeds_give_equal_weights_and_leave_the_callers_random_numbers_alone() -> None:
    source = parse_model_source(SMALL["gpt-tiny"])
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = (start.from_configuration(source, seed, "cpu").state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["transformer.wte.weight"], other["transformer.wte.weight"])


def test_new_weights_do_not_depend_on_the_number_of_threads() -> None:
    """Wide enough that torch would share the filling of a tensor among threads, if it did so."""
    program = (
        "import sys, torch, hashlib; torch.set_num_threads(int(sys.argv[1]))\n"
        "from services.contracts.sources import parse_model_source\n"
        "from workers.training import start\n"
        "source = parse_model_source('config:gpt-tiny?layers=1&width=512&mlp=2048')\n"
        "model = start.from_configuration(source, 3, 'cpu')\n"
        "print(hashlib.sha256(b''.join(t.numpy().tobytes() for t in model.state_dict().values())).hexdigest())"
    )
    digests = {
        subprocess.run([sys.executable, "-c", program, threads], capture_output=True, text=True, check=True).stdout
        for threads in ("1", "4")
    }
    assert len(digests) == 1


def test_initial_weights_have_the_standard_deviations_of_gpt2() -> None:
    """0.02, and of what adds to the residual stream 0.02 / √(2 · layers): GPT-2's paper and code."""
    model = start.from_configuration(parse_model_source("config:gpt-tiny?width=128&layers=4"), 0, "cpu")
    assert isinstance(model, GPT2LMHeadModel)
    block = model.transformer.h[1]
    # the estimate of σ out of n values has a relative standard deviation of 1/√(2n) < 0.6 % for these 16,384 and more
    assert block.attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert block.attn.c_proj.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.03)
    assert block.mlp.c_proj.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.03)


def test_a_pretrained_model_is_loaded_with_its_weights_and_without_its_dropout(settings: Settings) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.3, attn_pdrop=0.4)
    saved = GPT2LMHeadModel(config)
    saved.save_pretrained(settings.home / "models" / "saved")
    made = begun("path:saved", settings)
    assert made.pretrained
    expected = saved.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in made.model.state_dict().items())
    assert all(weight.requires_grad for weight in made.model.parameters())
    made.model.train()
    token_ids = torch.arange(32)[None] % 64
    first, second = (made.model(token_ids).logits for _ in range(2))
    assert torch.equal(first, second)


def test_a_model_that_is_no_longer_what_was_submitted_is_refused(settings: Settings) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)).save_pretrained(
        settings.home / "models" / "saved"
    )
    with pytest.raises(KeyholeError, match="submitted was sha256:other") as refused:
        start.prepare_start("path:saved", "sha256:other", 0, "cpu", settings)
    assert refused.value.code is ErrorCode.MODEL_CHANGED


def test_what_cannot_be_trained_here_is_refused_before_memory_is_taken() -> None:
    """10¹³ parameters."""
    source = parse_model_source("config:gpt-tiny?layers=1024&width=32768&mlp=131072")
    with pytest.raises(KeyholeError, match="parameters with gradients and moments") as refused:
        start.from_configuration(source, 0, "cpu")
    assert refused.value.code is ErrorCode.OUT_OF_MEMORY


def test_a_stored_config_makes_the_model_whose_weights_it_goes_with(settings: Settings) -> None:
    made = begun(SMALL["qwen3"], settings)
    again = start.from_config(made.model.config.to_dict(), "cpu")
    again.load_state_dict(made.model.state_dict())
    token_ids = torch.arange(16)[None]
    assert torch.equal(made.model(token_ids).logits, again(token_ids).logits)
