"""``ratchet``: does one step of gradient descent pull the top key further ahead? (equations 26-33)."""

from typing import Annotated

from pydantic import Field

from services.contracts.probes.common import Credit, ProbeParameters
from services.contracts.tables import HEAD, JOB, LAYER, SEQUENCE, STATISTIC_KEY, Column, ResultTable, SummaryMetric

# Sources by their attention weight: band k holds weights from BANDS[k] up to BANDS[k - 1], the last all below.
BANDS = (0.1, 1e-2, 1e-3, 1e-4, 0.0)


class RatchetParameters(ProbeParameters):
    credit: Annotated[
        Credit,
        Field(
            description="loss behind the advantage: 'sequence', the mean over the sequence, or 'own_token', "
            "the loss of the one prediction made at each query"
        ),
    ] = "sequence"


TABLE = ResultTable(
    name="ratchet",
    comment="What one gradient step does to the top key of each query, against the runner-up and against the rest "
    "(equations 29-31). NaN where the query has no credit or a single key.",
    columns=(
        *STATISTIC_KEY,
        Column("top_key", "int4", "position of the key with the largest attention weight"),
        Column("runner_up", "int4", "position of the key with the second largest; -1 in a row of one key"),
        Column("log_odds_runner_up", "float4", "log of a_top / a_runner_up, nats; Infinity in a row of one key"),
        Column("log_odds_rest", "float4", "log of a_top / (1 - a_top), nats; a sink is in the rest"),
        Column("log10_delta", "float4", "log10 of the norm of delta, the gradient at the output; -Infinity without"),
        Column("log10_x_squared", "float4", "log10 of X^2, the mean of |x_j|^2 under the attention weights"),
        Column(
            "gain_top",
            "float4",
            "change of the top key's advantage by a step on V (29), in units of eta_V |delta|^2 X^2",
        ),
        Column("gain_runner_up", "float4", "the same of the runner-up"),
        Column("advantage_top", "float4", "advantage of the top key, in units of |delta|"),
        Column("advantage_runner_up", "float4", "the same of the runner-up"),
        Column(
            "odds_growth_runner_up",
            "float4",
            "change of log_odds_runner_up by a step on the scores (31), in units of eta_s |delta|",
        ),
        Column("odds_growth_rest", "float4", "change of log_odds_rest by it, to first order, in the same units"),
    ),
)

BAND_TABLE = ResultTable(
    name="ratchet_band",
    comment="Sources of all measured queries of a sequence by attention weight: how many gain advantage by a step on "
    "V, and how many a higher score by a step on the scores (equations 29 and 30).",
    columns=(
        JOB,
        LAYER,
        HEAD,
        SEQUENCE,
        Column("band", "int2", "weight: 0 from 0.1 on, 1 from 0.01, 2 from 1e-3, 3 from 1e-4, 4 below"),
        Column("sources", "int8", "query-key pairs of that weight, in queries with credit and two keys or more"),
        Column("gain_positive", "int8", "those whose advantage grows"),
        Column("step_positive", "int8", "those whose score grows, which are those of positive advantage"),
        Column("mean_gain", "float4", "mean change of advantage, in units of eta_V |delta|^2 X^2; NaN without sources"),
        Column(
            "mean_abs_step",
            "float4",
            "mean absolute change of the score, in units of eta_s |delta|; NaN without sources",
        ),
    ),
)


_WEIGHTS = ("0.1 or more", "0.01 to 0.1", "1e-3 to 0.01", "1e-4 to 1e-3", "below 1e-4")  # by band
_UNDEFINED = "gain_top = 'NaN'"  # as are then all that depend on a step


def _holds(name: str, condition: str, comment: str, undefined: str = _UNDEFINED) -> SummaryMetric:
    expression = f"CASE WHEN {undefined} THEN 'NaN'::float8 WHEN {condition} THEN 1 ELSE 0 END"
    return SummaryMetric(
        name,
        TABLE.name,
        expression,
        0.0,
        1.0,
        2,
        f"1 where {comment}, else 0; its mean is the share of queries, undefined ones left out",
    )


def _of_band(band: int, name: str, expression: str, comment: str) -> SummaryMetric:
    """Over the rows of one band; sums of sequences, so that shares of sources are ratios of these means."""
    of_band = f"CASE WHEN band = {band} THEN ({expression})::float8 ELSE 'NaN' END"
    return SummaryMetric(
        f"band{band}_{name}", BAND_TABLE.name, of_band, 0.0, 1.0, 1, f"{comment}, of attention weight {_WEIGHTS[band]}"
    )


# |gain| of key j is at most 1 + |x_j| / X, which nothing bounds; those of SmolLM2-135M, and leads, are within 2.01
_GAIN_BINS = (-2.5, 0.02, 250)

METRICS = (
    SummaryMetric(
        "gain_top",
        TABLE.name,
        "gain_top",
        *_GAIN_BINS,
        "change of the top key's advantage by a step on V, in units of eta_V |delta|^2 X^2",
    ),
    SummaryMetric(
        "gain_lead",
        TABLE.name,
        "gain_top - gain_runner_up",
        *_GAIN_BINS,
        "change of the top key's advantage by a step on V less that of the runner-up's, same units as gain_top",
    ),
    SummaryMetric(
        "top_weight",
        TABLE.name,
        # beyond 40 nats it is 1 to sixteen digits, and exp of far more is an error
        "CASE WHEN log_odds_rest > 40 THEN 1 ELSE 1 / (1 + exp(-log_odds_rest::float8)) END",
        0.0,
        0.02,
        50,
        "attention weight of the top key",
    ),
    _holds("gain_top_positive", "gain_top > 0", "the top key's advantage grows"),
    _holds("lead_grows", "gain_top > gain_runner_up", "the top key's lead in advantage over the runner-up grows"),
    _holds(
        "lead_grows_elsewhere",
        "gain_top > gain_runner_up",
        "the lead in advantage of a top key other than the first position grows",
        f"{_UNDEFINED} OR top_key = 0",
    ),
    _holds("top_is_first", "top_key = 0", "the top key is the first position"),
    _holds("step_top_positive", "advantage_top > 0", "the top key's score grows"),
    _holds("odds_grow", "odds_growth_runner_up > 0", "the top key's odds to the runner-up grow"),
    _holds("odds_rest_grow", "odds_growth_rest > 0", "the top key's odds to all the rest grow"),
    _holds(
        "ratchets",
        "gain_top > gain_runner_up AND odds_growth_runner_up > 0",
        "the top key's lead in advantage over the runner-up and its odds to it both grow",
    ),
    *(
        _of_band(band, name, expression, comment)
        for band in range(len(BANDS))
        for name, expression, comment in (
            ("sources", "sources", "number of query-key pairs in a sequence"),
            (
                "gain_positive",
                "gain_positive",
                "number of query-key pairs in a sequence that gain advantage by a step on V",
            ),
            (
                "step_positive",
                "step_positive",
                "number of query-key pairs in a sequence that gain score by a step on the scores",
            ),
            (
                "gain",
                "CASE WHEN sources = 0 THEN 0 ELSE sources * mean_gain END",
                "sum of the changes of advantage of query-key pairs in a sequence by a step on V",
            ),
        )
    ),
)
