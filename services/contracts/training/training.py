"""``training``: a run of a language model on a data set, with its variants, checkpoints and metrics.

Sequences are cut from the data set in the order of the seed. The run is divided into segments of
``checkpoints.resume_every`` steps, the shards of its job: each ends with a state from which the run goes on exactly.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from services.contracts.errors import KeyholeError
from services.contracts.parameters import JobParameters, Parameters
from services.contracts.sources import parse_dataset_source, parse_model_source
from services.contracts.training.optimizers import AdamW, Optimizer, Schedule
from services.contracts.training.variants import Variant, label_of, refuse_conflicts

MOST_SEGMENTS = 10_000
MOST_BETWEEN = 10**9  # steps between two of anything: more than a run has
LEAST_TOKENS = 257  # of a byte-level tokenizer: every byte, and the end of a document
_BPE = re.compile(r"bpe:([0-9]{1,7})")


def _tokenizer(value: str) -> str:
    """Raises ValueError for what is none of the forms."""
    if value in ("auto", "none"):
        return value
    if value.startswith("bpe:"):
        size = _BPE.fullmatch(value)
        if size is None or int(size[1]) < LEAST_TOKENS:
            raise ValueError(f"{value!r}: a byte-level tokenizer reads bpe:SIZE with at least {LEAST_TOKENS} tokens")
        return value
    try:
        source = parse_model_source(value)
    except KeyholeError as error:
        raise ValueError(f"it is auto, none, bpe:SIZE or a model source; {error}") from error
    if source.form not in ("hf", "path", "builtin"):
        raise ValueError(f"{value!r}: a tokenizer is taken from hf:, path: or builtin:; export a checkpoint for path:")
    return str(source)


def _dataset(value: str) -> str:
    try:
        return str(parse_dataset_source(value))
    except KeyholeError as error:
        raise ValueError(str(error)) from error


class Data(Parameters):
    """Which tokens are trained on, and which are held out."""

    tokenizer: Annotated[
        str,
        Field(
            max_length=4096,
            description="auto: the model's own, else byte-level BPE trained on the data, and none for token files; "
            "bpe:SIZE; none; or a model source whose tokenizer is taken",
        ),
        AfterValidator(_tokenizer),
    ] = "auto"
    sequences: Annotated[
        int | None,
        Field(
            ge=1,
            le=10**10,
            description="training sequences there are, passed over in epochs; none is all, or as many as needed",
        ),
    ] = None
    validation_sequences: Annotated[
        int, Field(ge=1, le=1_000_000, description="sequences held out for validation: the first ones of the data set")
    ] = 64
    validation_dataset: Annotated[
        Annotated[str, AfterValidator(_dataset)] | None,
        Field(max_length=4096, description="dataset source for validation; none is the training data's start"),
    ] = None


class Validation(Parameters):
    """When and how a run is looked at."""

    every: Annotated[
        int, Field(ge=1, le=MOST_BETWEEN, description="steps between validations; first and last step always")
    ] = 250
    log_every: Annotated[
        int, Field(ge=1, le=MOST_BETWEEN, description="steps between rows of loss, learning rate, gradient norm")
    ] = 10
    attention_sequences: Annotated[
        int,
        Field(
            ge=0,
            le=10_000,
            description="validation sequences whose attention is profiled at each validation; 0 is none",
        ),
    ] = 4
    spectra: Annotated[
        bool, Field(description="whether spectral norms of weights and of their updates are stored at each validation")
    ] = True


class Checkpoints(Parameters):
    """Which checkpoints a run stores. The first, the best and the last are stored always."""

    every: Annotated[
        int | None, Field(ge=1, le=MOST_BETWEEN, description="steps between checkpoints; none is no such checkpoints")
    ] = 250
    log_spaced: Annotated[bool, Field(description="also at steps 1, 2, 4, 8, …")] = False
    steps: Annotated[
        list[Annotated[int, Field(ge=0)]],
        Field(max_length=1000, description="also at these steps, from 0 to the run's last"),
    ] = Field(default=[])
    keep: Annotated[
        int | None,
        Field(ge=1, le=MOST_BETWEEN, description="of those taken every so many steps, the newest kept; none is all"),
    ] = None
    resume_every: Annotated[
        int, Field(ge=1, le=MOST_BETWEEN, description="steps between states from which a run that was lost goes on")
    ] = 100
    keep_optimizer: Annotated[
        bool, Field(description="keep the optimizer's state with every checkpoint, not only with the newest")
    ] = False


class TrainingParameters(JobParameters):
    steps: Annotated[int, Field(ge=1, le=10**8, description="optimizer steps")] = 500
    sequences_per_step: Annotated[
        int, Field(ge=1, le=1_000_000, description="sequences in one step, over all processes; the article's is 512")
    ] = 32
    batch: Annotated[
        int, Field(ge=1, le=65_536, description="sequences in one pass; gradients are added up to the step's sequences")
    ] = 8
    length: Annotated[int, Field(ge=2, le=131_072, description="tokens per sequence")] = 128
    seed: Annotated[int, Field(ge=0, le=2**31 - 1, description="of the initial weights and of the order of data")] = 0
    variants: Annotated[
        list[Variant], Field(max_length=8, description="changes to the control, by name or with their options")
    ] = Field(default=[])
    optimizer: Optimizer = Field(default=AdamW(), description="by name, or options of adamw, or options with a name")
    schedule: Schedule = Field(default=Schedule(), description="learning rate by step")
    clip: Annotated[
        float | None, Field(gt=0, description="the gradient is scaled down to this norm; none is no clipping")
    ] = 1.0
    data: Data = Field(default=Data(), description="tokens to train on and to hold out")
    validation: Validation = Field(default=Validation(), description="when and how the run is looked at")
    checkpoints: Checkpoints = Field(default=Checkpoints(), description="what is stored of the run")
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Field(description="arithmetic of the passes; weights and optimizer are float32 either way"),
    ] = "float32"
    processes: Annotated[int, Field(ge=1, le=64, description="processes that share each step, one device each")] = 1
    compile: Annotated[bool, Field(description="torch.compile the model; pays on a GPU")] = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse_conflicts(self.variants)
        if self.compile and any(variant.name == "natq" for variant in self.variants):
            raise ValueError("compile and natq exclude each other: a compiled pass cannot be given another gradient")
        if self.sequences_per_step % self.processes:
            raise ValueError(
                f"sequences_per_step {self.sequences_per_step} is no multiple of processes {self.processes}; each "
                "takes an equal part"
            )
        late = next((step for step in self.checkpoints.steps if step > self.steps), None)
        if late is not None:
            raise ValueError(f"checkpoints.steps has {late}, and the run has {self.steps} steps; leave it out")
        if -(-self.steps // self.checkpoints.resume_every) > MOST_SEGMENTS:
            raise ValueError(
                f"{self.steps} steps with a state every {self.checkpoints.resume_every} are more than {MOST_SEGMENTS} "
                "segments; raise checkpoints.resume_every"
            )
        return self

    def shards(self) -> list[tuple[int, int]]:
        """(first step, number of steps) of each segment."""
        size = self.checkpoints.resume_every
        return [(first, min(size, self.steps - first)) for first in range(0, self.steps, size)]

    def tokens_per_sequence(self) -> int:
        return self.length

    @property
    def variant(self) -> str:
        return label_of(self.variants)

    @property
    def tokens_per_step(self) -> int:
        return self.sequences_per_step * self.length
