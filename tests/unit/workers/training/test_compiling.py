"""Compiled passes: the same gradients, in one graph, and refused where they would leave something out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from services.contracts.errors import ErrorCode, KeyholeError
from tests.unit.workers.training.small_runs import parameters, trainer
from workers.training.compiling import compiled, compiling


def test_a_compiled_pass_has_the_same_gradients_and_no_break_in_its_graph() -> None:
    """With the tracing of torch.compile and without its code generation, which takes minutes."""
    changed = {"variants": ["qk_norm", "sigma_reparam"]}
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.workers.training.compiled_gradients", json.dumps(changed), "aot_eager"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[4],
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["breaks"], found["graphs"]) == (0, 1)
    assert found["norm"] > 0.1
    assert found["difference"] < 1e-6  # float32 gradients of that norm, summed in another order


def test_compile_with_natq_is_refused_at_submission_and_in_the_trainer() -> None:
    with pytest.raises(ValidationError, match="compile and natq exclude each other"):
        parameters(compile=True, variants=["natq"])
    made = trainer(parameters(variants=["natq"]))
    with pytest.raises(KeyholeError, match="query gradient") as refused:
        compiled(made.model, made._installed)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_what_the_compiler_cannot_do_is_said_with_what_to_do() -> None:
    torch._dynamo.reset()

    def failing(graph: object, inputs: object) -> None:
        raise RuntimeError("no compiler here")

    broken = torch.compile(lambda x: x + 1, backend=failing)
    with pytest.raises(KeyholeError, match="no compiler here") as refused, compiling():
        broken(torch.ones(2))
    assert refused.value.code is ErrorCode.MODEL_UNSUPPORTED
    assert "without compile" in refused.value.hint
