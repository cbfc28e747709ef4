"""NATQ's training step against the control's, exact and by conjugate gradients: ``python -m benchmarks.natq``.

For each head width and length: a step of a gpt-like model in float32 (forward, loss, backward, clipping, AdamW) on
1,024 tokens, with and without the query gradient, each way in a process of its own that waits its turn; rounds
alternate, medians are printed with each process's peak memory. Beside each time stands what it buys: the median and
99 % of the relative error of the new query gradients, against a float64 solve with NumPy, over every layer and head of
a sample of queries.

The model is a third of gpt-124m: 4 of 12 layers, a third of the vocabulary, hence the same share of attention in a
step. Fresh weights would flatter the iterations, since the keys of a trained model vary in few directions and its rows
are sharp. So the query and key projections are scaled: by a power law over the components of a head, and so that scores
have a standard deviation of 2.5. SmolLM2-135M needs 13 to 18 iterations at the same tolerance, this model as many
(d = 64).

On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from benchmarks.rounds import Work, in_processes
from workers.attention import natq, seam
from workers.attention.inputs import AttentionInputs
from workers.models.loaded import LoadedModel, describe

TARGET_RATIO, TARGET_ERROR = 1.5, 0.01
TOKENS = 1024  # of a step
WIDTH = 768
SCORES = 2.5  # standard deviation
POWER = 0.75  # of the components' scale over their number
SAMPLED = 24  # queries of each row of heads whose error is taken
MODES = ("control", "exact", "cg")


def build(options: argparse.Namespace) -> transformers.PreTrainedModel:
    """The model, attached to the seam and trainable."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50_304 // 12 * options.layers,
        n_positions=max(options.length, 64),
        n_embd=WIDTH,
        n_layer=options.layers,
        n_head=WIDTH // options.d_head,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = transformers.GPT2LMHeadModel(config).to(options.device)
    scale = torch.arange(1, options.d_head + 1, dtype=torch.float32) ** -POWER
    # x has length √width after its norm, so a component of q or k has a standard deviation of 0.02 √width times scale
    spread = scale.square().square().sum().sqrt() * 0.02**2 * WIDTH / options.d_head**0.5
    scale = (scale * (SCORES / spread).sqrt()).repeat(2 * WIDTH // options.d_head).to(options.device)
    for block in model.transformer.h:
        block.attn.c_attn.weight.data[:, : 2 * WIDTH] *= scale
    seam.attach(model)
    return model.train()


def solver_of(mode: str, options: argparse.Namespace) -> natq.Solver | None:
    if mode == "control":
        return None
    return natq.Solver(mode, tolerance=options.tolerance, iterations=options.iterations)


def loss_of(model: transformers.PreTrainedModel, ids: Tensor) -> Tensor:
    logits = model(ids, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def tokens(options: argparse.Namespace, round_: int) -> Tensor:
    generator = torch.Generator().manual_seed(round_)
    shape = (max(1, TOKENS // options.length), options.length)
    return torch.randint(50_304 // 12 * options.layers, shape, generator=generator).to(options.device)


@contextmanager
def prepared(mode: str, options: argparse.Namespace) -> Iterator[tuple[LoadedModel, Work]]:
    """In the process of the mode: the model and its step."""
    if options.threads:
        torch.set_num_threads(options.threads)
    model = build(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    solver = solver_of(mode, options)
    gradient = None if solver is None else lambda inputs: natq.transform(inputs, solver)

    def step(round_: int) -> None:
        with seam.observing(model, query_gradient=gradient):
            loss_of(model, tokens(options, round_)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    yield LoadedModel(model, None, "benchmark", describe(model), {}, options.device, "float32"), step


def errors(mode: str, options: argparse.Namespace) -> tuple[np.ndarray, float]:
    """Relative error of g̃ over a sample of rows of one pass, and the iterations of a row."""
    model, solver = build(options), solver_of(mode, options)
    assert solver is not None
    found: list[np.ndarray] = []
    iterations: list[float] = []

    def watched(inputs: AttentionInputs) -> Tensor:
        given: list[Tensor] = []
        inputs.query.register_hook(lambda natural: found.append(sampled(inputs, given[0], natural, solver.damping)))

        def count(layer: int, report: natq.Report) -> None:
            iterations.append(report.iterations[~report.zero].float().mean().item())

        query = natq.transform(inputs, solver, count)
        query.register_hook(given.append)
        return query

    with seam.observing(model, query_gradient=watched):
        loss_of(model, tokens(options, 0)).backward()
    return np.concatenate(found), float(np.mean(iterations))


def sampled(inputs: AttentionInputs, gradient: Tensor, natural: Tensor, damping: float) -> np.ndarray:
    """Relative errors in the first sequence against eq. 44 by NumPy; every head has as many keys as queries here."""
    query, key, given, found = (
        tensor[0].detach().double().cpu().numpy() for tensor in (inputs.query, inputs.key, gradient, natural)
    )
    length, d = query.shape[1:]
    results = []
    for position in np.linspace(1, length - 2, SAMPLED).astype(int):  # the last one predicts nothing
        for head in range(len(query)):
            keys = key[head, : position + 1]
            scores = inputs.scaling * keys @ query[head, position]
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            centred = keys - weights @ keys
            fisher = (weights[:, None] * centred).T @ centred / d
            x = np.linalg.solve(fisher + damping * np.trace(fisher) / d * np.eye(d), given[head, position])
            exact = x * np.linalg.norm(given[head, position]) / np.linalg.norm(x)
            results.append(np.linalg.norm(found[head, position] - exact) / np.linalg.norm(exact))
    return np.array(results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--d-heads", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=0.03)
    parser.add_argument("--iterations", type=int, default=48)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for d_head in options.d_heads:
        for length in options.lengths:
            options.d_head, options.length = d_head, length
            times, peak_mib, shape = in_processes(prepared, options.modes, options)
            print(
                f"d = {options.d_head}, T = {options.length}, {TOKENS} tokens a step, {options.layers} layers of "
                f"{shape.heads} heads, {shape.parameters / 1e6:.0f}M parameters, {options.rounds} rounds"
            )
            for mode, each in times.items():
                ratio = each.over(times["control"])
                said = ""
                if mode != "control":
                    error, iterations = errors(mode, options)
                    said = f"  error median {np.median(error):.1e}, 99 % {np.quantile(error, 0.99):.1e}"
                    said += f", {iterations:.1f} iterations" if mode == "cg" else ""
                print(
                    f"{mode:8}{each.wall:7.2f} s wall ({ratio.wall:4.2f}) {each.cpu:7.2f} s CPU ({ratio.cpu:4.2f}) "
                    f"{peak_mib[mode]:6.0f} MiB{said}",
                    flush=True,
                )
    print(f"aim for cg: {TARGET_RATIO} times the control at a median error of {TARGET_ERROR:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
