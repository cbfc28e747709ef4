"""A training run of the control against a loop written by hand: ``python -m benchmarks.training [options]``.

The loop is what anybody would write for the same transformers model: its own SDPA attention, torch's cross-entropy,
fused AdamW with the same groups, clipping, the same sequences in the same passes. The run is the Trainer as a job has
it, on the attention seam, with its look at every loss; validations and checkpoints, which cost what they cost, are
left out. Both start from the same weights, and their losses are compared at the end. Rounds take turns in one process
and medians are printed.

On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import sys
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.rounds import in_turn
from services.contracts.sources import parse_model_source
from services.contracts.training.training import TrainingParameters
from workers.training import start
from workers.training.data import TrainingData, sequences_of_step
from workers.training.sequences import Part, TokenSequences
from workers.training.training import Trainer
from workers.training_ranks import Silent

TARGET_RATIO = 0.95


def parameters_of(options: argparse.Namespace) -> TrainingParameters:
    never = 10**8
    return TrainingParameters.model_validate(
        {
            "steps": never,
            "sequences_per_step": options.sequences,
            "batch": options.batch,
            "length": options.length,
            "validation": {"every": never, "log_every": 10, "spectra": False},
            "checkpoints": {"every": None, "resume_every": never},
            "dtype": options.dtype,
            "compile": options.compile,
        }
    )


def data_of(parameters: TrainingParameters, vocabulary: int) -> TrainingData:
    """Random tokens: what they are makes no difference to the time."""
    tokens = np.random.default_rng(0).integers(0, vocabulary, (1024, parameters.length), dtype=np.uint16)
    found = TokenSequences([Part("random", tokens)], parameters.length, vocabulary)
    return TrainingData(found, found.take(np.arange(1)), None, None, "random", "random")


def plain_loop(
    source: str, parameters: TrainingParameters, data: TrainingData, device: str
) -> tuple[Callable[[], float], torch.nn.Module]:
    """A function that takes the next step and returns its loss."""
    model = start.from_configuration(parse_model_source(source), parameters.seed, device)
    model.set_attn_implementation("sdpa")
    called = torch.compile(model) if parameters.compile else model
    decayed = [
        weight
        for name, weight in model.named_parameters()
        if weight.ndim == 2 and "wte" not in name and "wpe" not in name
    ]
    others = [weight for weight in model.parameters() if not any(weight is other for other in decayed)]
    asked = parameters.optimizer
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": asked.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=asked.learning_rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    weights = list(model.parameters())
    done = 0

    def step() -> float:
        nonlocal done
        sequences = torch.from_numpy(sequences_of_step(data, parameters, done)).to(device)
        total = torch.zeros((), device=device)
        optimizer.zero_grad(set_to_none=True)
        for ids in sequences.split(parameters.batch):
            with torch.autocast(device, torch.bfloat16, enabled=parameters.dtype == "bfloat16"):
                logits = called(ids, use_cache=False).logits
            loss = (
                F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()) * len(ids) / len(sequences)
            )
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(weights, parameters.clip or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = asked.learning_rate * parameters.schedule.factor(done, parameters.steps)
        optimizer.step()
        done += 1
        return float(total)

    return step, model


def compared(source: str, options: argparse.Namespace) -> float:
    """Print the figures of one model; returns the ratio of CPU seconds, or of wall seconds on a GPU."""
    parameters = parameters_of(options)
    network = start.from_configuration(parse_model_source(source), parameters.seed, options.device)
    size = sum(weight.numel() for weight in network.parameters())
    data = data_of(parameters, network.config.get_text_config().vocab_size)
    trainer = Trainer(network, parameters, data, device=options.device)
    step, plain_model = plain_loop(source, parameters, data, options.device)

    def by_hand(round_: int) -> None:
        for _ in range(options.steps):
            step()

    def by_trainer(round_: int) -> None:
        trainer.advance(trainer.step + options.steps, Silent())

    times = in_turn({"plain": by_hand, "control": by_trainer}, options.rounds, torch.device(options.device))
    tokens = options.steps * parameters.tokens_per_step
    print(
        f"{source}, {size / 1e6:.1f}M parameters, {parameters.sequences_per_step} × {parameters.length} tokens a step "
        f"in passes of {parameters.batch}, {parameters.dtype}, {torch.get_num_threads()} threads, "
        f"{options.rounds} rounds of {options.steps} steps"
    )
    for name, each in times.items():
        print(f"{name:8} {each} {tokens / each.wall:10,.0f} tokens/s {tokens / each.cpu:10,.0f} tokens per CPU second")
    ratio = times["plain"].over(times["control"])
    apart = max(
        (weight - other).abs().max().item()
        for weight, other in zip(network.parameters(), plain_model.parameters(), strict=True)
    )
    print(f"ratio    {ratio.wall:8.3f}   wall {ratio.cpu:8.3f}   CPU (aim: {TARGET_RATIO} of the loop's tokens/s)")
    print(f"weights differ by at most {apart:.2g} after {trainer.step} steps")
    return ratio.cpu if options.device == "cpu" else ratio.wall


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="config:gpt-tiny,config:gpt-mini", help="separated by commas")
    parser.add_argument("--sequences", type=int, default=8, help="in a step")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a pass")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2, help="in a round")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for source in options.models.split(","):
        compared(source, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
