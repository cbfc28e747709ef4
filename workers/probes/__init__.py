"""The probes, one file per kind; ``PROBES`` names the function that measures a shard."""

from collections.abc import Callable
from typing import Any

from workers.probes import gradient_scale
from workers.probes.measurement import Measurement

# (loaded model, the kind's parameters, token ids [sequence, position], first sequence) → Measurement
Probe = Callable[[Any, Any, Any, int], Measurement]

PROBES: dict[str, Probe] = {"gradient_scale": gradient_scale.measure}
