"""Parameters that every probe shares: which sequences, which queries, which arithmetic."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from services.contracts.parameters import JobParameters, Parameters


class QueryRange(Parameters):
    """Queries start, start + step, … below stop. The default is the article's: 32, 36, …, 1020 of 1,024."""

    start: Annotated[int, Field(ge=0, description="first query position")] = 32
    stop: Annotated[int | None, Field(ge=1, description="end of the range, exclusive; none means the length")] = None
    step: Annotated[int, Field(ge=1, description="distance between queries")] = 4

    def positions(self, length: int) -> range:
        """The query positions in a sequence of ``length`` tokens."""
        return range(self.start, min(self.stop or length, length), self.step)


class ProbeParameters(JobParameters):
    """What a probe reads and how it computes."""

    sequences: Annotated[int, Field(ge=1, le=1_000_000, description="number of token sequences")] = 16
    length: Annotated[int, Field(ge=2, le=131_072, description="tokens per sequence")] = 1024
    batch: Annotated[int, Field(ge=1, le=1024, description="sequences in one forward pass")] = 1
    queries: QueryRange = Field(default=QueryRange(), description="which query positions are measured")
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Field(description="arithmetic of the model; statistics are float32 or better either way"),
    ] = "float32"

    @model_validator(mode="after")
    def _some_query(self) -> Self:
        if not self.queries.positions(self.length):
            raise ValueError(
                f"queries from {self.queries.start} to {self.queries.stop or self.length} select no position of a "
                f"sequence of length {self.length}; lower queries.start or raise length"
            )
        return self

    def shard_sequences(self) -> int:
        """Sequences per shard: whole batches, at most about a thousand shards a job."""
        per_shard = max(self.batch, -(-self.sequences // 1000))
        return -(-per_shard // self.batch) * self.batch

    def shards(self) -> list[tuple[int, int]]:
        size = self.shard_sequences()
        return [(first, min(size, self.sequences - first)) for first in range(0, self.sequences, size)]

    def tokens_per_sequence(self) -> int:
        return self.length

    def query_count(self) -> int:
        return len(self.queries.positions(self.length))


Credit = Literal["sequence", "own_token"]
