"""One row of the summary tables: the distribution of one metric over the queries of a head, a layer or a job."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """``head`` None means all heads of the layer, ``layer`` None the whole model. Bins start at ``histogram_low``."""

    job_id: int
    metric: str
    layer: int | None
    head: int | None
    n: int
    n_infinite: int
    n_undefined: int
    mean: float | None
    sd: float | None
    minimum: float | None
    q01: float | None
    q05: float | None
    q25: float | None
    median: float | None
    q75: float | None
    q95: float | None
    q99: float | None
    maximum: float | None
    histogram_low: float
    histogram_width: float
    histogram: list[int]

    def bin_edges(self) -> list[float]:
        return [self.histogram_low + index * self.histogram_width for index in range(len(self.histogram) + 1)]

    def finite_counts(self) -> list[int]:
        """The histogram without the infinite values, which the database counts in the last bin (none is negative)."""
        return [*self.histogram[:-1], self.histogram[-1] - self.n_infinite]

    def shares(self) -> list[float]:
        """Share of the defined rows in each bin, in percent; the infinite ones are in no bin, but in the total."""
        total = self.n - self.n_undefined
        return [100 * count / total if total else 0.0 for count in self.finite_counts()]
