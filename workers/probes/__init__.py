"""The probes, one file per kind; ``PROBES`` says how each is measured."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.models.others import OtherModels
from workers.probes import (
    attention_profile,
    buried_keys,
    calibration,
    entropy_bound,
    gradient_scale,
    jacobian_spectrum,
    pattern_stability,
    ratchet,
    shared_routing,
)
from workers.probes.measurement import Measurement
from workers.probes.passes import PassProbe


@dataclass(frozen=True)
class OwnPasses:
    """A probe that runs the model as it needs: ``measure(loaded, parameters, token_ids, first_sequence, others)``.

    ``token_ids`` [sequence, position] are those of one shard, which begins at ``first_sequence`` of the data set.
    """

    measure: Callable[[Any, Any, Any, int, OtherModels], Measurement]


PROBES: dict[str, PassProbe | OwnPasses] = {
    "gradient_scale": gradient_scale.PROBE,
    "attention_profile": attention_profile.PROBE,
    "buried_keys": buried_keys.PROBE,
    "jacobian_spectrum": jacobian_spectrum.PROBE,
    "ratchet": ratchet.PROBE,
    "shared_routing": OwnPasses(shared_routing.measure),
    "pattern_stability": OwnPasses(pattern_stability.measure),
    "entropy_bound": entropy_bound.PROBE,
    "calibration": OwnPasses(calibration.measure),
}
