"""Next-token logits with offsets added to chosen scores of one head and query, many such variants in one forward pass.

A variant changes a single row of scores, that of query i in one layer and head. Attention being all that mixes
positions, nothing before position i changes, so of each variant only position i itself has to be computed again. Every
variant is a *branch*: one more copy of token i, put behind the sequence with position i, whose rows see the sequence's
own keys before i and the branch itself, in every layer. The sequence's own positions see no branch. One forward pass
over the sequence and its branches then gives the logits of all variants.

Offsets are added to the scores as they enter the softmax: with a soft cap, to those after the cap.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import Credit
from workers.attention import rows, seam
from workers.attention.inputs import AttentionInputs
from workers.attention.softmax import attend


@dataclass(frozen=True)
class Branch:
    """``offsets[n]`` is added to the score of key ``keys[n]`` in the row of ``query`` in this layer and head."""

    layer: int
    head: int
    query: int
    keys: tuple[int, ...]
    offsets: tuple[float, ...]


@dataclass(frozen=True)
class Branched:
    logits: Float[Tensor, "branch token"]  # of the prediction made at the branch's query
    weights: Float[Tensor, "branch key"]  # attention weights of the branch's keys, offsets applied


@torch.no_grad()
def branched(model: PreTrainedModel, token_ids: Int[Tensor, " position"], branches: Sequence[Branch]) -> Branched:
    """Logits and weights of each branch of one sequence; all branches must name equally many keys.

    Raises KeyholeError: model_unsupported, if something besides attention mixes positions or the model takes no
    positions; invalid_request, if the model has no such layer or head, or a key is not in the query's row.
    """
    accepted = inspect.signature(model.forward).parameters
    if "position_ids" not in accepted:
        raise KeyholeError(
            ErrorCode.MODEL_UNSUPPORTED,
            f"{model.config.model_type} cannot be measured with changed scores: it takes no position_ids.",
            "Choose a model of another architecture.",
        )
    route = _BranchRoute(model, len(token_ids), branches)
    device = token_ids.device
    copies = torch.tensor([branch.query for branch in branches], device=device)
    positions = torch.cat([torch.arange(len(token_ids), device=device), copies])[None]
    ids = torch.cat([token_ids, token_ids[copies]])[None]
    keep = {"logits_to_keep": len(branches)} if "logits_to_keep" in accepted else {}
    with seam.observing(model, route=route, credit="own_token"):  # which refuses what else mixes positions
        # an all-ones mask: positions that repeat would otherwise be taken for the beginnings of packed sequences
        logits = model(ids, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False, **keep).logits
    return Branched(logits[0, -len(branches) :], route.weights)


class _BranchRoute:
    """The model's own attention for the sequence, and rows of their own for the branches behind it."""

    def __init__(self, model: PreTrainedModel, length: int, branches: Sequence[Branch]) -> None:
        config = model.config.get_text_config()
        for branch in branches:
            if branch.layer >= config.num_hidden_layers or branch.head >= config.num_attention_heads:
                raise KeyholeError(
                    ErrorCode.INVALID_REQUEST,
                    f"The model has no layer {branch.layer}, head {branch.head}; it has {config.num_hidden_layers} "
                    f"layers of {config.num_attention_heads} heads.",
                    "Name layers and heads from 0.",
                )
        self._length, self._branches = length, branches
        self._queries = torch.tensor([branch.query for branch in branches], device=model.device)
        self.weights = torch.full(
            (len(branches), len(branches[0].keys)), torch.nan, dtype=torch.float64, device=model.device
        )

    def __call__(self, inputs: AttentionInputs, credit: Credit) -> Float[Tensor, "batch head position d_value"]:
        length = self._length
        mask = None if inputs.mask is None else inputs.mask[:, :, :length, :length]
        before = replace(
            inputs,
            query=inputs.query[:, :, :length],
            key=inputs.key[:, :, :length],
            value=inputs.value[:, :, :length],
            mask=mask,
        )
        outputs = [attend(before)]
        for part in self._blocks(inputs):
            outputs.append(self._rows_of(inputs, before, part).to(inputs.value.dtype))
        return torch.cat(outputs, 2)

    def _blocks(self, inputs: AttentionInputs) -> Iterator[slice]:
        """Branches whose rows fit the block size of the device."""
        budget = rows.CPU_BLOCK if inputs.query.device.type == "cpu" else rows.GPU_BLOCK
        size = max(1, budget // (inputs.query.shape[1] * self._length))
        for first in range(0, len(self._branches), size):
            yield slice(first, min(first + size, len(self._branches)))

    def _rows_of(
        self, inputs: AttentionInputs, before: AttentionInputs, part: slice
    ) -> Float[Tensor, "batch head branch d_value"]:
        """Outputs of some branches; column i of a branch's row stands for the branch itself."""
        length = self._length
        queries, own = self._queries[part], slice(length + part.start, length + part.stop)
        query = inputs.query[:, :, own]
        scores = rows.raw_scores(before, query, length)
        place = queries[None, None, :, None].expand(*scores.shape[:3], 1)
        scores.scatter_(3, place, _own_scores(inputs, own))
        visible = self._visible(before, queries)
        scores.masked_fill_(~visible, -torch.inf)
        for number, branch in enumerate(self._branches[part]):
            if branch.layer == inputs.layer:
                _require_visible(branch, visible[0, branch.head % visible.shape[1], number])
                offsets = torch.tensor(branch.offsets, dtype=scores.dtype, device=scores.device)
                scores[0, branch.head, number, list(branch.keys)] += offsets
        normalizers = rows.with_sinks(scores.logsumexp(-1), inputs)
        weights = scores.sub_(normalizers[..., None]).exp_()
        for number, branch in enumerate(self._branches[part]):
            if branch.layer == inputs.layer:
                self.weights[part.start + number] = weights[0, branch.head, number, list(branch.keys)].double()
        own_weights = weights.gather(3, place)
        weights.scatter_(3, place, 0.0)
        groups = inputs.query.shape[1] // inputs.value.shape[1]
        own_values = rows.at_least_float32(inputs.value[:, :, own]).repeat_interleave(groups, 1)
        shared = rows.at_least_float32(before.value).transpose(-1, -2)
        return rows.grouped_product(weights, shared) + own_weights * own_values

    def _visible(
        self, before: AttentionInputs, queries: Int[Tensor, " branch"]
    ) -> Bool[Tensor, "1 masks branch position"]:
        """Which keys are in the row of each branch's query: those of the sequence's own position."""
        if before.mask is not None:
            return before.mask[:, :, queries]
        return (torch.arange(self._length, device=queries.device) <= queries[:, None])[None, None]


def _own_scores(inputs: AttentionInputs, own: slice) -> Float[Tensor, "batch head branch 1"]:
    """Score of each branch with its own key, soft cap applied."""
    query, key = (rows.at_least_float32(each[:, :, own]) for each in (inputs.query, inputs.key))
    groups = query.shape[1] // key.shape[1]
    scores = (query * key.repeat_interleave(groups, 1)).sum(-1, keepdim=True) * inputs.scaling
    return scores if inputs.softcap is None else inputs.softcap * torch.tanh(scores / inputs.softcap)


def _require_visible(branch: Branch, visible: Bool[Tensor, " position"]) -> None:
    for key in branch.keys:
        if not visible[key]:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"Key {key} is not in the row of query {branch.query} in layer {branch.layer}, head {branch.head}.",
                "The layer sees a sliding window; choose keys that lie closer to the query.",
            )
