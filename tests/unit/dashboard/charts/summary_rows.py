"""Summary rows made from values, computed with NumPy."""

from typing import Any

import numpy as np

from dashboard.summaries import Summary


def summary(values: list[float], metric: str = "log10_d_a", **key: Any) -> Summary:
    """The summary of these values as the database would store it: 200 bins of 0.1 from 0, the ends open."""
    array = np.asarray(values, dtype=float)
    finite = array[np.isfinite(array)]
    bins = np.clip(np.floor(np.minimum(array, 1e6) / 0.1), 0, 199).astype(int)
    quantiles = np.quantile(finite, [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
    return Summary(
        **({"job_id": 1, "layer": None, "head": None} | key),
        metric=metric,
        n=len(array),
        n_infinite=int(np.isinf(array).sum()),
        n_undefined=0,
        mean=float(finite.mean()),
        sd=float(finite.std()),
        minimum=float(array.min()),
        q01=float(quantiles[0]),
        q05=float(quantiles[1]),
        q25=float(quantiles[2]),
        median=float(quantiles[3]),
        q75=float(quantiles[4]),
        q95=float(quantiles[5]),
        q99=float(quantiles[6]),
        maximum=float(array.max()),
        histogram_low=0.0,
        histogram_width=0.1,
        histogram=np.bincount(bins, minlength=200).tolist(),
    )
