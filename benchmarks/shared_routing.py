"""shared_routing against plain passes: ``python -m benchmarks.shared_routing [options]``.

Plain is one forward pass of the same model over the same tokens with SDPA attention and torch's cross-entropy. The
probe is the whole of ``measure``: the unmodified pass and one pass for each of the L layers. Its time is compared with
that of L + 1 plain passes, and with the floor of restarted ones: L + L(L+1)/2 layers and L + 1 heads, counted by their
weights, which is what a matrix product costs. Rounds alternate in one process; medians are printed. What is found out
once per model (whether its passes can be restarted) happens in the first round, which is not counted.

On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from services.contracts.probes.shared_routing import SharedRoutingParameters
from services.contracts.settings import settings
from workers.attention import seam
from workers.data import read_sequences
from workers.models import LoadedModel, load_model
from workers.models.others import OtherModels
from workers.models.restarting import decoder_layers
from workers.probes import shared_routing


def plain_pass(loaded: LoadedModel, batch: torch.Tensor) -> None:
    loaded.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits = loaded.model(batch, use_cache=False).logits
        F.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
    seam.attach(loaded.model)


def floor_in_passes(loaded: LoadedModel) -> float:
    """How many plain passes the layers and heads of restarted passes make."""
    layers = decoder_layers(loaded.model)
    assert layers is not None, "this model's passes cannot be restarted"
    number = len(layers)
    layer = sum(weight.numel() for weight in layers[0].parameters())
    head = loaded.architecture.vocabulary_size * loaded.architecture.d_model
    return ((number + number * (number + 1) / 2) * layer + (number + 1) * head) / (number * layer + head)


def timed(work: Callable[[], object], loaded: LoadedModel) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if loaded.model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dataset", default="builtin:python-docs")
    parser.add_argument("--sequences", type=int, default=1, help="sequences in one pass")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--routing", choices=["shared_softmax", "sigmoid", "shared_sigmoid"], default="shared_softmax")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    loaded = load_model(options.model, device=options.device, dtype=options.dtype, settings=settings())
    token_ids = read_sequences(
        options.dataset,
        tokenizer=loaded.tokenizer,
        vocabulary_size=loaded.architecture.vocabulary_size,
        sequences=options.sequences,
        length=options.length,
        settings=settings(),
    ).token_ids
    ids = torch.as_tensor(token_ids, dtype=torch.int64, device=loaded.model.device)
    parameters = SharedRoutingParameters(
        sequences=options.sequences,
        length=options.length,
        batch=options.sequences,
        dtype=options.dtype,
        routing=options.routing,
    )
    works: dict[str, Callable[[], object]] = {
        "plain": lambda: plain_pass(loaded, ids),
        "probe": lambda: shared_routing.measure(loaded, parameters, token_ids, 0, OtherModels()),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for round_ in range(options.rounds + 1):
        for name in list(works)[:: 1 if round_ % 2 else -1]:
            figures = timed(works[name], loaded)
            if round_:
                seconds[name].append(figures)
    layers = loaded.architecture.layers
    medians = {
        name: [statistics.median(column) for column in zip(*rounds, strict=True)] for name, rounds in seconds.items()
    }
    print(f"{options.model}, {options.sequences} × {options.length} tokens, {options.routing}, {options.dtype}")
    for name, (wall, cpu) in medians.items():
        print(f"{name:6} {wall:8.2f} s wall {cpu:8.2f} s CPU")
    floor = floor_in_passes(loaded)
    for number, clock in enumerate(("wall", "CPU")):
        passes = medians["probe"][number] / medians["plain"][number]
        print(
            f"{clock:4}   {passes:6.2f} plain passes: {passes / (layers + 1):.3f} of {layers + 1}, "
            f"{passes / floor:.3f} of the floor of {floor:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
