"""jacobian_spectrum against LAPACK and the plain pass: ``python -m benchmarks.jacobian_spectrum [options]``.

For a few heads of one sequence, in rounds that take each in turn, medians printed:

- *plain pass*: one forward pass of the model over the same tokens, no logits but the last, SDPA attention;
- *Jacobians*: all that the probe does with the layers it is shown, self-check included;
- *eigenvalues*: torch's ``eigvalsh`` of the same Gram matrices and nothing else, all in one call. torch gives LAPACK
  one matrix after the other, whatever its number of threads;
- *eigenvalues, spread*: the same, spread over the cores as the probe spreads its blocks.

The floor is arithmetic: the eigenvalues, and 2·n·d_value·d_key operations for a Jacobian with n keys at the speed that
one large product reaches here. On a machine that others use, look at the ratios of CPU seconds.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from services.contracts.probes.common import QueryRange
from services.contracts.probes.jacobian_spectrum import JacobianSpectrumParameters, Site
from services.contracts.settings import settings
from workers.attention import jacobian, seam
from workers.attention.inputs import LayerAttention
from workers.attention.threads import over_cores
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.probes.jacobian_spectrum import SpectrumCollector

TARGET_RATIO = 1.3
DEPTHS = (2 / 28, 14 / 28, 26 / 28)  # the article's layers


class Keeper:
    """Keeps the layers that have a measured head."""

    def __init__(self, layers: set[int]) -> None:
        self._layers = layers
        self.kept: list[LayerAttention] = []

    def forward(self, attention: LayerAttention) -> None:
        if attention.layer in self._layers:
            self.kept.append(attention)

    def backward(self, attention: LayerAttention, delta: Tensor) -> None: ...


def gram_matrices(attention: LayerAttention, head: int, queries: range) -> list[Tensor]:
    """Of the smaller side of every J, block by block as the probe makes them."""
    site = jacobian.of_head(attention, 0, head)
    found = [jacobian.jacobians(site, positions).unscaled for positions in jacobian.blocks(site, queries)]
    return [j @ j.mT if j.shape[1] <= j.shape[2] else j.mT @ j for j in found]


def product_speed(d: int, device: torch.device, repeats: int = 20) -> float:
    """Operations per second of a float64 product as large as the probe's, on one core of a CPU."""
    one, other = (torch.randn(size, dtype=torch.float64, device=device) for size in ((d, 1024), (1024, 16 * d)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.mm(one, other)
    seconds = min(timed(lambda: torch.mm(one, other), device)[0] for _ in range(repeats))
    torch.set_num_threads(threads)
    return 2 * d * 1024 * 16 * d / seconds


def timed(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def plain_pass(loaded: LoadedModel, ids: Tensor) -> None:
    with torch.no_grad():
        loaded.model(ids, use_cache=False, logits_to_keep=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dataset", default="builtin:python-docs")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--step", type=int, default=1, help="distance between measured queries")
    parser.add_argument("--heads", type=int, default=1, help="heads measured in each of three layers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    loaded = load_model(options.model, device=options.device, dtype="float32", settings=settings())
    device = loaded.model.device
    token_set = read_sequences(
        options.dataset,
        tokenizer=loaded.tokenizer,
        vocabulary_size=loaded.architecture.vocabulary_size,
        sequences=1,
        length=options.length,
        settings=settings(),
    )
    ids = torch.as_tensor(token_set.token_ids, dtype=torch.int64, device=device)
    layers = [round(depth * loaded.architecture.layers) for depth in DEPTHS]
    sites = [Site(layer=layer, head=head) for layer in layers for head in range(options.heads)]
    start = min(32, options.length - 1)
    parameters = JacobianSpectrumParameters(
        sequences=1, length=options.length, sites=sites, queries=QueryRange(start=start, step=options.step)
    )
    queries = parameters.queries.positions(options.length)
    keeper = Keeper(set(layers))
    with torch.no_grad(), seam.observing(loaded.model, [keeper]):
        loaded.model(ids, use_cache=False)
    loaded.model.set_attn_implementation("sdpa")
    blocks = [
        gram
        for attention in keeper.kept
        for head in range(options.heads)
        for gram in gram_matrices(attention, head, queries)
    ]
    every = torch.cat(blocks)

    def jacobians() -> None:
        collector = SpectrumCollector(loaded, parameters, range(1), options.length)
        collector.begin(slice(0, 1), ids)
        with torch.no_grad():
            for attention in keeper.kept:
                collector.forward(attention)
        collector.result()

    works: dict[str, Callable[[], object]] = {
        "plain pass": lambda: plain_pass(loaded, ids),
        "Jacobians": jacobians,
        "eigenvalues": lambda: torch.linalg.eigvalsh(every),
        "eigenvalues, spread": lambda: over_cores(torch.linalg.eigvalsh, blocks, device),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for round_ in range(options.rounds + 1):
        for name in list(works)[:: 1 if round_ % 2 else -1]:
            figures = timed(works[name], device)
            if round_:  # the first round warms up
                seconds[name].append(figures)
    wall, cpu = (
        {name: statistics.median(figures[index] for figures in taken) for name, taken in seconds.items()}
        for index in (0, 1)
    )

    key, value = keeper.kept[0].key.shape[-1], keeper.kept[0].value.shape[-1]
    products = len(sites) * sum(2.0 * (query + 1) * key * value for query in queries) / product_speed(key, device)
    floor = (cpu["eigenvalues"] + products) / cpu["eigenvalues"]
    print(f"{options.model}, {options.length} tokens, {len(sites)} heads, {len(every):,} Jacobians {value} × {key}")
    print(f"{torch.get_num_threads()} threads on {device}, {options.rounds} rounds")
    for name in works:
        each = "" if name == "plain pass" else f"{1e6 * cpu[name] / len(every):8.0f} µs CPU each"
        print(f"{name:20}{wall[name]:8.3f} s wall{cpu[name]:8.3f} s CPU{each}")
    for name in ("eigenvalues", "eigenvalues, spread"):
        ratios = f"{wall['Jacobians'] / wall[name]:.2f} wall, {cpu['Jacobians'] / cpu[name]:.2f} CPU"
        print(f"Jacobians / {name:20}{ratios} (aim {TARGET_RATIO})")
    print(f"Jacobians / plain pass          {wall['Jacobians'] / wall['plain pass']:.2f} wall")
    print(f"floor: eigenvalues and products at full speed on one core, {floor:.2f} of the eigenvalues' CPU seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
