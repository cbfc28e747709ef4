"""shared_routing against plain passes: ``python -m benchmarks.shared_routing [options]``.

Plain is one forward pass of the same model over the same tokens with SDPA attention and torch's cross-entropy. The
probe is the whole of ``measure``: the unmodified pass and one pass for each of the L layers. Its time is compared with
that of L + 1 plain passes, and with the floor of restarted ones: L + L(L+1)/2 layers and L + 1 heads, counted by their
weights, which is what a matrix product costs. Rounds alternate in one process; medians are printed. What is found out
once per model (whether its passes can be restarted) happens in the first round, which is not counted.

On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import plain
from benchmarks.rounds import Work, in_turn
from services.contracts.probes.common import QueryRange
from services.contracts.probes.shared_routing import SharedRoutingParameters
from workers.models import LoadedModel
from workers.models.others import OtherModels
from workers.models.restarting import decoder_layers
from workers.probes import shared_routing


def forward_with_losses(loaded: LoadedModel, ids: Tensor) -> None:
    """The probe scores every prediction, so that the plain pass has all logits and losses as well."""
    with torch.no_grad():
        logits = loaded.model(ids, use_cache=False).logits
        F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")


def floor_in_passes(loaded: LoadedModel) -> float:
    """How many plain passes the layers and heads of restarted passes make."""
    layers = decoder_layers(loaded.model)
    assert layers is not None, "this model's passes cannot be restarted"
    number = len(layers)
    layer = sum(weight.numel() for weight in layers[0].parameters())
    head = loaded.architecture.vocabulary_size * loaded.architecture.d_model
    return ((number + number * (number + 1) / 2) * layer + (number + 1) * head) / (number * layer + head)


def main() -> int:
    parser = plain.parser(__doc__, fixed={"step": 1}, rounds=3)
    parser.add_argument("--routing", choices=["shared_softmax", "sigmoid", "shared_sigmoid"], default="shared_softmax")
    options = parser.parse_args()

    loaded = plain.load(options)
    (token_ids,) = plain.read_tokens(loaded, options)
    ids = plain.on_device(loaded, token_ids)
    parameters = plain.job_parameters(
        SharedRoutingParameters, options, queries=QueryRange(start=0, step=options.step), routing=options.routing
    )

    def plain_pass(_: int) -> None:
        with plain.sdpa(loaded):
            forward_with_losses(loaded, ids)

    works: dict[str, Work] = {
        "plain": plain_pass,
        "probe": lambda _: shared_routing.measure(loaded, parameters, token_ids, 0, OtherModels()),
    }
    times = in_turn(works, options.rounds, loaded.model.device)

    print(f"{options.model}, {options.sequences} × {options.length} tokens, {options.routing}, {options.dtype}")
    for mode, each in times.items():
        print(f"{mode:6} {each}")
    floor, number = floor_in_passes(loaded), loaded.architecture.layers + 1
    for clock, passes in zip(("wall", "CPU"), times["probe"].over(times["plain"]), strict=True):
        print(
            f"{clock:4}   {passes:6.2f} plain passes: {passes / number:.3f} of {number}, "
            f"{passes / floor:.3f} of the floor of {floor:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
