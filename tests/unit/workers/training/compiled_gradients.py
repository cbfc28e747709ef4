"""Run by test_compiling.py in a process without run-time checks of shapes, which torch.compile cannot trace.

Prints, for a set of parameters given as JSON, the largest difference of gradients and what the tracing did.
"""

import json
import sys

import numpy as np
import torch
from torch._dynamo.utils import counters

from tests.unit.workers.training.small_runs import parameters, small_data, trainer
from workers.training import loop
from workers.training.compiling import compiled


def main() -> None:
    made = trainer(parameters(**json.loads(sys.argv[1])))
    tokens = torch.from_numpy(small_data().training.take(np.arange(4)))
    gradients = []
    for model in (made.model, compiled(made.model, made._installed, backend=sys.argv[2])):
        made.model.zero_grad()
        (loop.loss_sum(model, tokens) / 124).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in made.model.parameters() if p.grad is not None]))
    eager, traced = gradients
    breaks, stats = sum(counters["graph_break"].values()), counters["stats"]
    found = {"difference": float((traced - eager).abs().max()), "norm": float(eager.norm())}
    print(json.dumps({**found, "breaks": breaks, "graphs": stats["unique_graphs"]}))


if __name__ == "__main__":
    main()
