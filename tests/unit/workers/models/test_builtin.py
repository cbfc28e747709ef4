"""The built-in model is the one its file holds, and knows the Python documentation's language."""

import json
import math

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from services.contracts.settings import Settings
from services.sources import builtin
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.models.gguf import converted_folder


def test_weights_are_those_of_the_gguf_dequantized(smollm2: LoadedModel) -> None:
    reader = gguf.GGUFReader(builtin.smollm2("smollm2-135m-instruct").gguf)
    weights = smollm2.model.state_dict()
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "blk.7.ffn_up.weight": "model.layers.7.mlp.up_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
    }
    for tensor in reader.tensors:
        if tensor.name in names:
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(weights[names.pop(tensor.name)].numpy().ravel(), expected.ravel())
    assert not names


def test_the_loss_on_python_docs_is_that_of_plain_transformers_and_sensible(
    smollm2: LoadedModel, builtin_settings: Settings
) -> None:
    docs = read_sequences(
        "builtin:python-docs",
        tokenizer=smollm2.tokenizer,
        vocabulary_size=smollm2.architecture.vocabulary_size,
        sequences=2,
        length=256,
        settings=builtin_settings,
    )
    token_ids = torch.from_numpy(docs.token_ids).long()
    plain = LlamaForCausalLM.from_pretrained(
        converted_folder(builtin.smollm2("smollm2-135m-instruct"), builtin_settings), attn_implementation="sdpa"
    )
    with torch.no_grad():
        log_probabilities = plain(token_ids).logits.double().log_softmax(-1)
        predicted = log_probabilities[:, :-1].gather(-1, token_ids[:, 1:, None])
        loss = smollm2.model(token_ids, labels=token_ids, use_cache=False).loss.item()
    assert loss == pytest.approx(-predicted.mean().item(), abs=1e-4)
    assert loss < 0.35 * math.log(smollm2.architecture.vocabulary_size)  # a model of chance has 1.0


def test_digits_are_tokens_of_their_own_and_text_comes_back(smollm2: LoadedModel) -> None:
    assert smollm2.tokenizer is not None
    text = "In 1998,  Python 1.5.1\n\tand 漢字 🙂 2026"
    tokens = smollm2.tokenizer(text, add_special_tokens=False).input_ids
    assert smollm2.tokenizer.decode(tokens) == text
    pieces = [smollm2.tokenizer.decode([token]).strip() for token in tokens]
    assert [piece for piece in pieces if any(c.isascii() and c.isdigit() for c in piece)] == list("19981512026")


def test_a_damaged_conversion_is_made_again(
    builtin_settings: Settings, smollm2: LoadedModel, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """The conversion itself takes half a minute: here only whether it is asked for."""
    from workers.models import gguf as conversion

    model = builtin.smollm2("smollm2-135m-instruct")
    folder = converted_folder(model, builtin_settings)
    copy = tmp_path / "cache" / "models" / folder.name
    copy.mkdir(parents=True)
    for path in folder.iterdir():
        (copy / path.name).symlink_to(path)
    made = []
    monkeypatch.setattr(conversion, "_convert", lambda model, making: made.append(making))
    settings = Settings(home=tmp_path)
    assert converted_folder(model, settings) == copy
    assert made == []
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps({"model_type": "llama"}))
    converted_folder(model, settings)
    assert len(made) == 1


def test_the_rounded_model_predicts_worse_and_still_knows_the_language(
    smollm2: LoadedModel, builtin_settings: Settings
) -> None:
    worse = load_model("builtin:smollm2-135m-instruct-3bit", device="cpu", dtype="float32", settings=builtin_settings)
    assert worse.architecture == smollm2.architecture
    assert worse.identity != smollm2.identity
    docs = read_sequences(
        "builtin:python-docs",
        tokenizer=worse.tokenizer,
        vocabulary_size=worse.architecture.vocabulary_size,
        sequences=2,
        length=256,
        settings=builtin_settings,
    )
    token_ids = torch.from_numpy(docs.token_ids).long()
    with torch.no_grad():
        losses = [model.model(token_ids, labels=token_ids, use_cache=False).loss.item() for model in (smollm2, worse)]
    assert losses[0] + 0.1 < losses[1] < 0.6 * math.log(worse.architecture.vocabulary_size)
