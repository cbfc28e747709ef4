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

import sys
from functools import partial

import torch
from torch import Tensor

from benchmarks import plain
from benchmarks.rounds import Work, in_turn, timed
from services.contracts.probes.jacobian_spectrum import JacobianSpectrumParameters, Site
from workers.attention import jacobian, seam
from workers.attention.inputs import LayerAttention
from workers.attention.threads import over_cores
from workers.models import LoadedModel
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
    seconds = min(timed(partial(torch.mm, one, other), device).wall for _ in range(repeats))
    torch.set_num_threads(threads)
    return 2 * d * 1024 * 16 * d / seconds


def article_sites(layers: int, heads: int) -> list[Site]:
    return [Site(layer=round(depth * layers), head=head) for depth in DEPTHS for head in range(heads)]


def watched(loaded: LoadedModel, ids: Tensor, sites: list[Site]) -> list[LayerAttention]:
    """Inputs of the attention in the layers of the sites."""
    keeper = Keeper({site.layer for site in sites})
    with torch.no_grad(), seam.observing(loaded.model, [keeper]):
        loaded.model(ids, use_cache=False)
    return keeper.kept


def main() -> int:
    parser = plain.parser(__doc__, fixed={"sequences": 1, "dtype": "float32"}, step=1)
    parser.add_argument("--heads", type=int, default=1, help="heads measured in each of three layers")
    options = parser.parse_args()

    loaded = plain.load(options)
    device = loaded.model.device
    (token_ids,) = plain.read_tokens(loaded, options)
    ids = plain.on_device(loaded, token_ids)
    sites = article_sites(loaded.architecture.layers, options.heads)
    parameters = plain.job_parameters(JacobianSpectrumParameters, options, sites=sites)
    queries = parameters.queries.positions(options.length)
    kept = watched(loaded, ids, sites)
    blocks = [
        gram for attention in kept for head in range(options.heads) for gram in gram_matrices(attention, head, queries)
    ]
    every = torch.cat(blocks)

    def jacobians(_: int) -> None:
        collector = SpectrumCollector(loaded, parameters, range(1), options.length)
        collector.begin(slice(0, 1), ids)
        with torch.no_grad():
            for attention in kept:
                collector.forward(attention)
        collector.result()

    works: dict[str, Work] = {
        "plain pass": lambda _: plain.forward(loaded, ids),
        "Jacobians": jacobians,
        "eigenvalues": lambda _: torch.linalg.eigvalsh(every),
        "eigenvalues, spread": lambda _: over_cores(torch.linalg.eigvalsh, blocks, device),
    }
    with plain.sdpa(loaded):
        times = in_turn(works, options.rounds, device)

    key, value = kept[0].key.shape[-1], kept[0].value.shape[-1]
    products = len(sites) * sum(2.0 * (query + 1) * key * value for query in queries) / product_speed(key, device)
    floor = (times["eigenvalues"].cpu + products) / times["eigenvalues"].cpu
    print(f"{options.model}, {options.length} tokens, {len(sites)} heads, {len(every):,} Jacobians {value} × {key}")
    print(f"{torch.get_num_threads()} threads on {device}, {options.rounds} rounds")
    for name, (wall, cpu) in times.items():
        each = "" if name == "plain pass" else f"{1e6 * cpu / len(every):8.0f} µs CPU each"
        print(f"{name:20}{wall:8.3f} s wall{cpu:8.3f} s CPU{each}")
    for name in ("eigenvalues", "eigenvalues, spread"):
        ratio = times["Jacobians"].over(times[name])
        print(f"Jacobians / {name:20}{ratio.wall:.2f} wall, {ratio.cpu:.2f} CPU (aim {TARGET_RATIO})")
    print(f"Jacobians / plain pass          {times['Jacobians'].over(times['plain pass']).wall:.2f} wall")
    print(f"floor: eigenvalues and products at full speed on one core, {floor:.2f} of the eigenvalues' CPU seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
