"""pattern_stability against its forward passes: ``python -m benchmarks.pattern_stability [options]``.

The job's model and perturbed copies of it in memory are compared on the same sequences. Plain is one forward pass of
each without logits, SDPA attention; the probe is the whole of ``measure`` with its temporary files. The rest of its
time beyond the passes is that of the pairs. Rounds alternate in one process, medians are printed.

The floor is what a pair cannot do without: for each query and key of all layers and heads a logarithm of the mixture
with every head of the other checkpoint, timed as NumPy's over as many numbers (torch's on a GPU).
"""

import argparse
import copy
import dataclasses
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from services.contracts.probes.common import QueryRange
from services.contracts.probes.pattern_stability import Checkpoint, PatternStabilityParameters
from services.contracts.settings import settings
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.models.others import OtherModels
from workers.probes import passes, pattern_stability


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


def seconds(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Wall and CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dataset", default="builtin:python-docs")
    parser.add_argument("--checkpoints", type=int, default=4, help="the model's copies, itself among them")
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--step", type=int, default=4, help="distance between measured queries")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    loaded = load_model(options.model, device=options.device, dtype=options.dtype, settings=settings())
    architecture, device = loaded.architecture, loaded.model.device
    token_set = read_sequences(
        options.dataset,
        tokenizer=loaded.tokenizer,
        vocabulary_size=architecture.vocabulary_size,
        sequences=options.sequences,
        length=options.length,
        settings=settings(),
    )
    models = [loaded, *(moved(loaded, seed) for seed in range(1, options.checkpoints))]
    parameters = PatternStabilityParameters(
        sequences=options.sequences,
        length=options.length,
        queries=QueryRange(start=min(32, options.length - 1), step=options.step),
        dtype=options.dtype,
        checkpoints=[Checkpoint(model=options.model, step=number) for number in range(1, options.checkpoints)],
    )
    others = OtherModels([lambda model=model: model for model in models[1:]])

    def plain() -> None:
        for model in models:
            model.model.set_attn_implementation("sdpa")
            for sequence in token_set.token_ids:
                ids = torch.as_tensor(sequence[None], dtype=torch.int64, device=device)
                with torch.no_grad():
                    model.model(ids, use_cache=False, logits_to_keep=1)
            model.model.set_attn_implementation(passes.seam.IMPLEMENTATION)

    def probe() -> None:
        pattern_stability.measure(loaded, parameters, token_ids=token_set.token_ids, first_sequence=0, others=others)

    taken: dict[str, list[tuple[float, float]]] = {"plain": [], "probe": []}
    for round_ in range(options.rounds + 1):
        for mode, work in list({"plain": plain, "probe": probe}.items())[:: 1 if round_ % 2 else -1]:
            figures = seconds(work, device)
            if round_:  # the first round warms up
                taken[mode].append(figures)
    medians = {mode: [statistics.median(column) for column in zip(*each, strict=True)] for mode, each in taken.items()}
    pairs = options.checkpoints * (options.checkpoints - 1) // 2
    queries = parameters.queries.positions(options.length)
    keys = sum(position + 1 for position in queries) * options.sequences
    numbers = architecture.layers * architecture.heads**2 * keys
    print(
        f"{options.model}, {options.checkpoints} checkpoints ({pairs} pairs), {options.sequences} × {options.length} "
        f"tokens, queries step {options.step}, {options.dtype}, {options.rounds} rounds"
    )
    for mode, (wall, cpu) in medians.items():
        print(f"{mode:6} {wall:8.2f} s wall {cpu:8.2f} s CPU")
    wall, cpu = (probe / plain for probe, plain in zip(medians["probe"], medians["plain"], strict=True))
    print(f"ratio  {wall:8.3f}   wall {cpu:8.3f}   CPU")
    pair, passed = (medians["probe"][0] - medians["plain"][0]) / pairs, medians["plain"][0] / options.checkpoints
    floor = logarithm_s(numbers, device)
    print(f"a pair takes {pair:.3f} s, {pair / passed:.2f} of a forward pass of one checkpoint")
    print(f"floor  {floor:.3f} s for its {numbers:,} logarithms; a pair takes {pair / floor:.1f} times that")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
