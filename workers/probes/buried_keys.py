"""Buried keys: keys on which several heads of a layer agree by advantage, however little they attend to them.

For each layer and query every head picks the ``top_k`` keys of its row with the largest |A_ij|,
A_ij = −δ_i·(v_j − y_i). A key qualifies when at least ``min_heads`` heads pick it and agree on the sign: more attention
(A > 0) or less. Its score is Σ |A| / rms_j(A) over the agreeing heads. "Buried Keys Are Measurable" in "Stuck in a
Loop" (https://hyperstition.cc/stuck-in-a-loop). How buried a key is, its ranks in the agreeing heads' attention tell:
1 + the keys that the head attends to more.

Conventions: of equal advantages the key that comes first is picked; equal scores share the better attention rank; both
signs of a key may qualify; a row whose advantages are all 0 (the last position of a sequence) picks nothing. Under a
sliding window ranks and root mean squares are over the keys of the row. A sink is no key.

Self-checks: Σ_j a_ij A_ij = 0, see ``workers.attention.advantage``; and one query of each layer and pass is counted
again by a plain loop over heads and keys, which must find the same coalitions.

Beyond the model's own pass, memory holds one layer, one block of rows and the rows of the result.
"""

import math
from collections import defaultdict

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.buried_keys import KEY_TABLE, PICK_TABLE, QUERY_TABLE, BuriedKeysParameters
from services.contracts.tables import ResultTable
from workers.attention import advantage, coalition, rows
from workers.attention.advantage import AdvantageRows
from workers.attention.coalition import Coalitions, Picks
from workers.attention.inputs import LayerAttention, Outputs
from workers.models.loaded import LoadedModel
from workers.probes.measurement import Measurement
from workers.probes.passes import PassProbe

_NUMPY_TYPES = {"int2": np.int16, "int4": np.int32, "float4": np.float32, "bool": np.bool_}
_SCORE_TOLERANCE = 1e-5  # of the counted-again score: it is a sum of some float32 quotients

Columns = dict[str, np.ndarray]


class CoalitionCollector:
    """Gathers the rows of all three tables when the backward pass reaches a layer."""

    def __init__(self, loaded: LoadedModel, parameters: BuriedKeysParameters, sequences: range, length: int) -> None:
        parameters.require_fit(loaded.architecture.layers, loaded.architecture.heads)
        self._parameters = parameters
        self._dtype = loaded.model.dtype
        self._sequences = sequences
        self._queries = parameters.queries.positions(length)
        self._batch = slice(0, 0)  # sequences of the current pass
        self._residual = torch.zeros((), device=loaded.model.device)  # largest departure from the identity so far
        self._mismatches = 0
        self._parts: dict[str, list[Columns]] = defaultdict(list)

    def begin(self, sequences: slice, token_ids: Integer[Tensor, "batch position"]) -> None:
        self._batch = sequences

    def forward(self, attention: LayerAttention) -> None:
        """Nothing: rows are computed when δ is there, so that no layer's rows wait for it."""

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        batch = len(delta)
        # one query of this layer and pass, another one each time, is counted again
        sampled = (7919 * attention.layer + 104_729 * self._batch.start) % (batch * len(self._queries))
        sampled_sequence, sampled_query = divmod(sampled, len(self._queries))
        done = 0
        for positions in rows.query_blocks(self._queries, attention):
            credit = delta[:, rows.as_index(positions)].transpose(1, 2)
            found, picks, residual = picks_of_block(attention, positions, credit, self._parameters.top_k)
            # NaN stays: torch.maximum propagates it
            self._residual = torch.maximum(self._residual, residual.max().to(self._residual.dtype))
            coalitions = coalition.agree(picks, self._parameters.min_heads)
            if done <= sampled_query < done + len(positions):
                within = sampled_query - done
                row = sampled_sequence * len(positions) + within
                again = _counted_again(found, sampled_sequence, within, self._parameters)
                self._mismatches += _differences(coalitions, row, again)
            self._store(attention.layer, positions, picks, coalitions)
            done += len(positions)

    def _store(self, layer: int, positions: range, picks: Picks, found: Coalitions) -> None:
        """Keep the block's rows of the tables, on the host and in the tables' types."""
        row = _numpy(found.row)
        sequence = np.repeat(np.asarray(self._sequences)[self._batch], len(positions))  # by row of the block
        query = np.tile(np.asarray(positions), len(sequence) // len(positions))
        kept = _kept(row, _numpy(found.smallest_rank), self._parameters)
        qualifying = np.bincount(row, minlength=len(sequence))
        scores, place = _numpy(found.score), _numpy(found.place)
        best = np.zeros(len(sequence))
        best[row[place == 1]] = scores[place == 1]
        self._add(
            QUERY_TABLE,
            layer=layer,
            sequence=sequence,
            query=query,
            best_score=best,
            qualifying=qualifying,
            most_heads=_numpy(found.most_heads),
        )
        self._add(
            KEY_TABLE,
            layer=layer,
            sequence=sequence[row][kept],
            query=query[row][kept],
            key=_numpy(found.key)[kept],
            score=scores[kept],
            attention_rank_smallest=_numpy(found.smallest_rank)[kept],
            attention_rank_median=_numpy(found.median_rank)[kept],
            attention_rank_largest=_numpy(found.largest_rank)[kept],
            largest_weight=_numpy(found.largest_weight)[kept],
            direction=_numpy(found.direction)[kept],
            heads=_numpy(found.heads)[kept],
            place=place[kept],
        )
        if self._parameters.picks == "none":
            return
        of_pick = _numpy(found.of_pick)
        advantages = _numpy(picks.advantages)
        stored = advantages != 0
        if self._parameters.picks == "coalition":
            stored &= (np.bincount(row[kept], minlength=len(sequence)) > 0)[:, None, None]
        where, head, number = np.nonzero(stored)
        self._add(
            PICK_TABLE,
            layer=layer,
            head=head,
            sequence=sequence[where],
            query=query[where],
            key=_numpy(picks.keys)[stored],
            advantage=advantages[stored],
            weight=_numpy(picks.weights)[stored],
            attention_rank=_numpy(picks.attention_ranks)[stored],
            place=number + 1,
            agrees=of_pick[stored] >= 0,
        )

    def _add(self, table: ResultTable, **columns: np.ndarray | int) -> None:
        count = len(columns["sequence"])  # type: ignore[arg-type]  # the layer alone is a number
        self._parts[table.name].append(
            {
                column.name: np.broadcast_to(columns[column.name], (count,)).astype(_NUMPY_TYPES[column.type])
                for column in table.columns[1:]
            }
        )

    def result(self) -> Measurement:
        residual = float(self._residual)
        advantage.check_identity(residual, self._dtype)
        if self._mismatches:
            raise KeyholeError(
                ErrorCode.SELF_CHECK_FAILED,
                f"Of the queries that were counted again, {self._mismatches} coalitions came out differently.",
                "This is a defect of the probe, or of the device: report it.",
            )
        return Measurement(
            rows={table.name: self._sorted(table) for table in (KEY_TABLE, PICK_TABLE, QUERY_TABLE)},
            checks={"max_identity_residual": residual, "max_coalition_mismatches": float(self._mismatches)},
        )

    def _sorted(self, table: ResultTable) -> Columns:
        """All rows of a table by its key; within a query they are by place already, and the sort is stable."""
        columns = {
            column.name: np.concatenate(
                [np.empty(0, _NUMPY_TYPES[column.type]), *(part[column.name] for part in self._parts[table.name])]
            )
            for column in table.columns[1:]
        }
        order = np.lexsort([columns[name] for name in reversed(table.key)])
        return {name: values[order] for name, values in columns.items()}


PROBE = PassProbe(CoalitionCollector, backward=True)


def picks_of_block(
    attention: LayerAttention, positions: range, delta: Float[Tensor, "batch head query d_value"], top_k: int
) -> tuple[AdvantageRows, Picks, Float[Tensor, "batch head query"]]:
    """The block's rows, the heads' picks in them by row (sequence, query), and the departures from the identity."""
    delta = rows.at_least_float32(delta)
    # to size 1: squares of small advantages would underflow, and neither picks nor scores depend on the size of δ
    size = delta.abs().amax(-1, keepdim=True)
    found = advantage.of_block(attention, positions, torch.where(size == 0, 0, delta / size))
    rows.hidden_columns(found.advantage, found.hidden).masked_fill_(found.hidden, 0)
    magnitudes = found.advantage.abs()
    largest, keys = coalition.largest_entries(magnitudes, top_k)
    visible = found.scores.shape[-1] - found.hidden.sum(-1)
    square = torch.linalg.vector_norm(found.advantage, dim=-1) / visible.sqrt()
    signed = found.advantage.gather(-1, keys)
    weights = (found.scores.gather(-1, keys) - found.log_normalizers[..., None]).exp()
    ranks = coalition.attention_ranks(found.scores, keys, magnitudes)

    def by_row(values: Tensor) -> Tensor:
        return values.transpose(1, 2).flatten(0, 1)  # [batch, head, query, pick] → [row, head, pick]

    advantages = torch.where(signed == 0, 0, signed / square[..., None])
    picks = Picks(*map(by_row, (keys, advantages, weights, ranks)))
    return found, picks, found.residual(largest[..., 0])


def _kept(row: np.ndarray, smallest_rank: np.ndarray, parameters: BuriedKeysParameters) -> np.ndarray:
    """Which qualifying keys are stored: the first ``keep`` of each row that are buried deep enough."""
    deep = smallest_rank >= parameters.min_attention_rank
    number = deep.cumsum()
    before = np.append(0, number)[np.searchsorted(row, row)]  # deep ones of earlier rows
    return deep & (number - before <= parameters.keep)


def _counted_again(
    found: AdvantageRows, sequence: int, query: int, parameters: BuriedKeysParameters
) -> dict[tuple[int, int], tuple[list[int], float]]:
    """Attention ranks in the agreeing heads, and score, by key and direction, by a plain loop over one query."""
    agreeing: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for scores, advantages in zip(found.scores[sequence, :, query], found.advantage[sequence, :, query], strict=True):
        score, size = scores.double().tolist(), advantages.double().tolist()
        row = [key for key in range(len(score)) if score[key] > -math.inf]
        square = math.sqrt(math.fsum(size[key] ** 2 for key in row) / len(row))
        for key in sorted(row, key=lambda key: (-abs(size[key]), key))[: parameters.top_k]:
            if size[key] != 0:
                rank = 1 + sum(score[other] > score[key] for other in row)
                agreeing[key, 1 if size[key] > 0 else -1].append((rank, abs(size[key]) / square))
    return {
        choice: (sorted(rank for rank, _ in members), math.fsum(size for _, size in members))
        for choice, members in agreeing.items()
        if len(members) >= parameters.min_heads
    }


def _differences(found: Coalitions, row: int, again: dict[tuple[int, int], tuple[list[int], float]]) -> int:
    """Coalitions of a row that are in one of the two only, or have other heads, ranks or scores."""
    mine = {}
    for index in (found.row == row).nonzero()[:, 0].tolist():
        choice = int(found.key[index]), int(found.direction[index])
        ranks = (int(found.smallest_rank[index]), float(found.median_rank[index]), int(found.largest_rank[index]))
        mine[choice] = (int(found.heads[index]), *ranks, float(found.score[index]))
    wrong = len(mine.keys() ^ again.keys())
    for choice in mine.keys() & again.keys():
        ranks, score = again[choice]
        *counts, summed = mine[choice]
        same = counts == [len(ranks), ranks[0], float(np.median(ranks)), ranks[-1]]
        wrong += not (same and math.isclose(summed, score, rel_tol=_SCORE_TOLERANCE))
    return wrong


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy()
