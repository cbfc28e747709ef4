"""NATQ: the gradient that reaches a layer's queries becomes a damped natural gradient of the same norm.

    g̃_i = ‖g_i‖ x_i / ‖x_i‖,   x_i = (F_i + λ_i I)⁻¹ g_i,   λ_i = damping · tr F_i / d

equations 42-44 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop; there damping is 0.1), for every head and
query by itself, with F_i as ``workers/attention/natq_rows.py`` says. g_i = ∂L/∂q_i at the query as it enters the dot
product, after rotary embedding and norms; keys, and all that F_i is made of, are constants.

F_i may be in any unit: with s F_i instead of F_i, λ_i becomes s λ_i, x_i becomes x_i / s, and g̃_i stays as it is. So
nothing depends on whether equation 42 has 1/d or the model's own c² before the sum (they differ where a model scales
its scores otherwise), and the solvers work with F_i d / tr F_i, whose damping is the same number for every row.

Rows that nothing is to be solved for keep their gradient: g_i = 0, and F_i = 0. The latter is the row of a single key,
in which softmax has no gradient (row 0, but for a sink), or of equal keys, along which it has none; what is left there
is rounding error. A gradient that is not finite is handed on as it is, for the training loop to find.

g̃ is homogeneous: a loss times a positive number gives g̃ times that number. It is not additive: the backward pass of a
sum of losses differs from the sum of their backward passes, where both reach the same row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor
from torch.autograd.function import once_differentiable

from workers.attention import natq_cg, natq_exact, natq_rows, rows
from workers.attention.inputs import AttentionInputs, Queries
from workers.attention.natq_cg import Solution
from workers.attention.natq_rows import FisherRows, Layer
from workers.attention.threads import over_cores


@dataclass(frozen=True)
class Solver:
    """How rows are solved; ``tolerance``, ``iterations`` and ``fallback`` are for conjugate gradients."""

    method: Literal["exact", "cg"]
    damping: float = 0.1
    tolerance: float = 0.03  # of the residual over λ‖x‖, which bounds the relative error of x
    iterations: int = 48  # at most so many a row
    fallback: bool = True  # whether rows that are not done by then are solved exactly


@dataclass(frozen=True)
class Report:
    """What became of every row of a layer in one backward pass."""

    residual: Float[Tensor, "batch head position"]  # ‖r‖ / (λ‖x‖) of the solution that was taken
    iterations: Integer[Tensor, "batch head position"]  # of conjugate gradients
    unfinished: Bool[Tensor, "batch head position"]  # the iterations, or the decomposition, did not solve it
    zero: Bool[Tensor, "batch head position"]  # g or F is 0: the gradient is handed on


def transform(inputs: AttentionInputs, solver: Solver, report: Callable[[int, Report], None] | None = None) -> Queries:
    """The layer's query, unchanged; its backward pass hands on g̃ in place of g, and tells ``report`` of its layer.

    Nothing is kept but query, key and sinks, which autograd holds for attention anyway; weights are computed again by
    blocks of queries, in float32 or better, whatever the dtype and under autocast too.
    """
    return _NaturalGradient.apply(inputs.query, inputs.key, inputs.sinks, inputs, solver, report)


class _NaturalGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        sinks: Tensor | None,
        call: AttentionInputs,
        solver: Solver,
        report: Callable[[int, Report], None] | None,
    ) -> Tensor:
        ctx.save_for_backward(query, key, sinks)
        # the call without its tensors: what autograd keeps is what is saved above
        ctx.constants = (call.layer, call.scaling, call.mask, call.softcap, solver, report)
        return query.view_as(query)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types lose the name of ctx
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, sinks = ctx.saved_tensors
        layer, scaling, mask, softcap, solver, report = ctx.constants
        inputs = AttentionInputs(layer, query, key, key, scaling, mask, softcap, sinks)  # values have no part in it
        natural, told = natural_gradient(inputs, gradients[0], solver)
        if report is not None:
            report(layer, told)
        return natural, None, None, None, None, None


@torch.no_grad()
def natural_gradient(inputs: AttentionInputs, gradient: Queries, solver: Solver) -> tuple[Queries, Report]:
    """g̃ for the gradients at a layer's queries, in their dtype."""
    with torch.autocast(gradient.device.type, enabled=False):
        layer = natq_rows.by_problem(inputs, gradient)
        shape = layer.gradient.shape[:3]
        natural = torch.empty_like(layer.gradient, memory_format=torch.contiguous_format)
        told = Report(
            residual=natural.new_empty(shape),
            iterations=torch.empty(shape, dtype=torch.int32, device=natural.device),
            unfinished=torch.empty(shape, dtype=torch.bool, device=natural.device),
            zero=torch.empty(shape, dtype=torch.bool, device=natural.device),
        )

        def work(part: tuple[slice, range]) -> None:
            with torch.no_grad():  # a thread has a mode of its own
                _solve_part(layer, *part, solver, natural, told)

        over_cores(work, list(natq_rows.parts(layer)), natural.device)
    heads = gradient.shape[:3]
    told = Report(*(tensor.view(heads) for tensor in vars(told).values()))
    return natural.view(gradient.shape).to(gradient.dtype), told


def _solve_part(layer: Layer, problems: slice, positions: range, solver: Solver, natural: Tensor, told: Report) -> None:
    """Solve a block and write it into its place of ``natural`` and ``told``."""
    place = (problems, slice(None), rows.as_index(positions))
    given = layer.gradient[place]
    block = natq_rows.fisher_rows(layer, problems, positions)
    gradient = given.flatten(1, 2)
    largest = gradient.abs().amax(-1, keepdim=True)
    unit = gradient / torch.where(largest > 0, largest, 1)  # squares of small gradients would be 0
    norm = unit.norm(dim=-1, keepdim=True)
    unit = unit / torch.where(norm > 0, norm, 1)
    solution, unfinished = _solve(block, unit, solver)
    length = solution.x.norm(dim=-1, keepdim=True)
    usable = (length > 0) & length.isfinite()
    restored = torch.where(usable, solution.x / length * (norm * largest), gradient)
    zero = block.flat | (largest == 0).squeeze(-1)
    # 1 where nothing was solved for: g is taken for x
    residual = torch.where(zero, 0, torch.where(usable.squeeze(-1), solution.residual, 1))
    for target, source in (
        (natural, restored),
        (told.residual, residual),
        (told.iterations, solution.steps),
        (told.unfinished, unfinished),
        (told.zero, zero),
    ):
        target[place] = source.view(target[place].shape)


def _solve(
    block: FisherRows, unit: Float[Tensor, "problem row d"], solver: Solver
) -> tuple[Solution, Bool[Tensor, "problem row"]]:
    """The solution, and which rows the chosen method has not solved; those are solved exactly if asked."""
    if solver.method == "exact":
        found = natq_exact.solve(block, unit, solver.damping)
        return found, ~found.done
    found = natq_cg.solve(block, unit, solver.damping, solver.tolerance, solver.iterations)
    unfinished = ~found.done
    left = int(unfinished.sum(-1).max()) if solver.fallback else 0
    if left == 0:
        return found, unfinished
    chosen = unfinished.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)[:, :left]
    wide = chosen[..., None].expand(-1, -1, unit.shape[-1])
    exact = natq_exact.solve(natq_rows.only(block, chosen), unit.gather(1, wide), solver.damping)
    take = unfinished.gather(1, chosen) & exact.done
    x = found.x.scatter(1, wide, torch.where(take[..., None], exact.x, found.x.gather(1, wide)))
    residual = found.residual.scatter(1, chosen, torch.where(take, exact.residual, found.residual.gather(1, chosen)))
    return replace(found, x=x, residual=residual), unfinished
