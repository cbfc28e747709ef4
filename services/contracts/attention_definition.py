"""What a trained model's attention does that its architecture does not say: it goes with the checkpoint.

Stored in config.json under ``keyhole_attention``. Without it the weights would be used with another attention than
they were trained with.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.parameters import Parameters

CONFIG_KEY = "keyhole_attention"
Routing = Literal["softmax", "sigmoid", "shared_softmax", "shared_sigmoid"]


class AttentionDefinition(Parameters):
    """The default is attention as the architecture defines it."""

    qk_norm: bool = False  # queries and keys with root mean square 1 before the dot product
    scale: Annotated[float | None, Field(gt=0)] = None  # factor of the dot product instead of the model's
    routing: Routing = "softmax"
    sigmoid_bias: float | None = None  # of sigmoid routing; none is −log of the row's length

    @property
    def plain(self) -> bool:
        return self == AttentionDefinition()

    @classmethod
    def of_config(cls, config: dict[str, Any]) -> Self:
        """The definition that a config.json carries; raises KeyholeError (model_refused) if it is none."""
        try:
            return cls.model_validate(config.get(CONFIG_KEY) or {})
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise KeyholeError(
                ErrorCode.MODEL_REFUSED,
                f"config.json has a {CONFIG_KEY} that says {'.'.join(map(str, first['loc']))}: {first['msg']}.",
                "Export the checkpoint again.",
            ) from error

    def stored(self) -> dict[str, Any]:
        """The entry of config.json; empty for attention as the architecture defines it."""
        return {} if self.plain else {CONFIG_KEY: self.model_dump(mode="json", exclude_defaults=True)}
