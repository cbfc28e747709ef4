"""A training step of each variant against the control's: ``python -m benchmarks.variants [options]``.

The Trainer as a job has it (forward, loss, backward, clipping, optimizer, and what a variant does after the step), from
the same weights on the same random tokens; validations and checkpoints are left out. Rounds take turns in one process
and medians are compared.

On a machine that others use, look at the ratio of CPU seconds (``--threads 1`` makes them comparable).
"""

import argparse
import sys

import torch

from benchmarks.rounds import Work, in_turn
from benchmarks.training import data_of, parameters_of
from services.contracts.sources import parse_model_source
from services.contracts.training.training import TrainingParameters
from workers.training import start
from workers.training.training import Trainer
from workers.training_ranks import Silent

VARIANTS = ("shared_softmax", "sigmoid", "shared_sigmoid", "qk_norm", "sigma_reparam", "spectral_norm")


def steps_of(name: str, options: argparse.Namespace) -> Work:
    """Takes the steps of a round."""
    asked = parameters_of(options).model_dump() | {"variants": [] if name == "control" else [name]}
    parameters = TrainingParameters.model_validate(asked)
    model = start.from_configuration(parse_model_source(options.model), parameters.seed, options.device)
    data = data_of(parameters, model.config.get_text_config().vocab_size)
    trainer = Trainer(model, parameters, data, device=options.device)
    return lambda _: trainer.advance(trainer.step + options.steps, Silent())


def compared(options: argparse.Namespace) -> dict[str, float]:
    """Ratios to the control: of CPU seconds, or of wall seconds on a GPU."""
    device = torch.device(options.device)
    works = {name: steps_of(name, options) for name in ("control", *options.variants)}
    times = in_turn(works, options.rounds, device)
    print(
        f"{options.model}, {options.sequences} × {options.length} tokens a step, {options.dtype}, "
        f"{torch.get_num_threads()} threads, {options.rounds} rounds of {options.steps} steps"
    )
    ratios = {}
    for name, each in times.items():
        ratio = each.over(times["control"])
        ratios[name] = ratio.cpu if device.type == "cpu" else ratio.wall
        print(f"{name:15} {each}   ratio {ratio.wall:5.2f} wall {ratio.cpu:5.2f} CPU")
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="config:gpt-tiny")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), help="NATQ has a benchmark of its own")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--tokens", type=int, default=2048, help="in a step, one pass")
    parser.add_argument("--steps", type=int, default=2, help="in a round")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 leaves its choice")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for length in options.lengths:
        options.length = length
        options.sequences = options.batch = max(1, options.tokens // length)
        compared(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
