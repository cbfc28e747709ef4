"""pattern_stability against its forward passes: ``python -m benchmarks.pattern_stability [options]``.

The job's model and perturbed copies of it in memory are compared on the same sequences. Plain is one forward pass of
each without logits, SDPA attention; the probe is the whole of ``measure`` with its temporary files. The rest of its
time beyond the passes is that of the pairs. Rounds alternate in one process, medians are printed.

The floor is what a pair cannot do without: for each query and key of all layers and heads a logarithm of the mixture
with every head of the other checkpoint, timed as NumPy's over as many numbers (torch's on a GPU).
"""

import copy
import dataclasses
import sys
import time

import numpy as np
import torch

from benchmarks import plain
from benchmarks.rounds import Work, in_turn
from services.contracts.probes.pattern_stability import Checkpoint, PatternStabilityParameters
from workers.models import LoadedModel
from workers.models.others import OtherModels
from workers.probes import pattern_stability


def moved(loaded: LoadedModel, seed: int) -> LoadedModel:
    """A copy whose weights moved by a tenth of their spread."""
    model = copy.deepcopy(loaded.model)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.data += 0.1 * parameter.data.float().std().to(parameter) * noise
    return dataclasses.replace(loaded, model=model)


def logarithm_s(numbers: int, device: torch.device) -> float:
    """Seconds of as many logarithms, in pieces that stay in the cache, on all cores."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    piece = torch.rand(2**18 if device.type == "cpu" else 2**26, device=device)
    out = torch.empty_like(piece)
    rounds = 20
    started = time.perf_counter()
    for _ in range(rounds):
        if device.type == "cpu":
            np.log(piece.numpy(), out=out.numpy())
        else:
            torch.log(piece, out=out)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / rounds / piece.numel() * numbers / threads


def main() -> int:
    parser = plain.parser(__doc__)
    parser.add_argument("--checkpoints", type=int, default=4, help="the model's copies, itself among them")
    options = parser.parse_args()
    loaded = plain.load(options)
    architecture, device = loaded.architecture, loaded.model.device
    (token_ids,) = plain.read_tokens(loaded, options)
    models = [loaded, *(moved(loaded, seed) for seed in range(1, options.checkpoints))]
    parameters = plain.job_parameters(
        PatternStabilityParameters,
        options,
        batch=1,
        checkpoints=[Checkpoint(model=options.model, step=number) for number in range(1, options.checkpoints)],
    )
    others = OtherModels([lambda model=model: model for model in models[1:]])

    def plain_passes(_: int) -> None:
        with plain.sdpa(*models):
            for model in models:
                for sequence in token_ids:
                    plain.forward(model, plain.on_device(model, sequence[None]))

    works: dict[str, Work] = {
        "plain": plain_passes,
        "probe": lambda _: pattern_stability.measure(
            loaded, parameters, token_ids=token_ids, first_sequence=0, others=others
        ),
    }
    times = in_turn(works, options.rounds, device)

    pairs = options.checkpoints * (options.checkpoints - 1) // 2
    queries = parameters.queries.positions(options.length)
    keys = sum(position + 1 for position in queries) * options.sequences
    numbers = architecture.layers * architecture.heads**2 * keys
    print(
        f"{options.model}, {options.checkpoints} checkpoints ({pairs} pairs), {options.sequences} × {options.length} "
        f"tokens, queries step {options.step}, {options.dtype}, {options.rounds} rounds"
    )
    for mode, each in times.items():
        print(f"{mode:6} {each}")
    ratio = times["probe"].over(times["plain"])
    print(f"ratio  {ratio.wall:8.3f}   wall {ratio.cpu:8.3f}   CPU")
    pair = (times["probe"].wall - times["plain"].wall) / pairs
    passed = times["plain"].wall / options.checkpoints
    floor = logarithm_s(numbers, device)
    print(f"a pair takes {pair:.3f} s, {pair / passed:.2f} of a forward pass of one checkpoint")
    print(f"floor  {floor:.3f} s for its {numbers:,} logarithms; a pair takes {pair / floor:.1f} times that")
    return 0


if __name__ == "__main__":
    sys.exit(main())
