"""The view of growth with width against a least-squares line by NumPy."""

import math

import numpy as np
import pytest

from tests.conftest import MigratedDatabase
from tests.integration.db import example_runs
from tests.integration.db.example_runs import LAYERS, WIDTHS, ladder


@pytest.fixture(scope="module")
def suite_id(module_database: MigratedDatabase) -> int:
    with module_database.connect() as conn, conn.transaction():
        example_runs.insert(conn)  # runs of one width, in no suite: they are not to be seen
        return example_runs.insert_ladder(conn)


@pytest.mark.parametrize(("matrix", "ratio"), [("q", 1), ("mlp.c_fc", 4)])
@pytest.mark.parametrize("step", [0, 250, 500])
def test_exponents_and_their_errors_are_those_of_least_squares(
    module_database: MigratedDatabase, suite_id: int, matrix: str, ratio: int, step: int
) -> None:
    with module_database.connect_analyst() as reader:
        (row,) = reader.execute(
            "SELECT runs, widths, smallest_width, largest_width, update_exponent, update_exponent_se, weight_exponent, "
            "weight_exponent_se FROM width_growth WHERE suite_id = %s AND matrix = %s AND step = %s",
            (suite_id, matrix, step),
        ).fetchall()
    points = [(width * math.sqrt(ratio), seed, width) for width in WIDTHS for seed in (0, 1)]
    assert row[:2] == (len(points), len(WIDTHS))
    assert row[2:4] == pytest.approx((points[0][0], points[-1][0]))
    chosen = [
        [each for each in ladder(width, seed) if each.matrix == matrix and each.step == step]
        for _, seed, width in points
    ]
    assert all(len(of_run) == LAYERS for of_run in chosen)
    x = np.log([width for width, *_ in points])
    weights = np.array([[math.log(each.weight_sigma) for each in of_run] for of_run in chosen]).mean(1)
    assert row[6:] == pytest.approx(_line(x, weights))
    if step == 0:
        assert row[4:6] == (None, None)
    else:
        updates = np.array([[math.log(each.update_sigma or 0) for each in of_run] for of_run in chosen]).mean(1)
        assert row[4:6] == pytest.approx(_line(x, updates))


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and its standard error."""
    design = np.column_stack([np.ones_like(x), x])
    solution, *_ = np.linalg.lstsq(design, y)
    left = y - design @ solution
    covariance = (left @ left) / (len(x) - 2) * np.linalg.inv(design.T @ design)
    return float(solution[1]), float(np.sqrt(covariance[1, 1]))


def test_norms_that_are_no_numbers_are_left_out(module_database: MigratedDatabase) -> None:
    with module_database.connect() as conn, conn.transaction(force_rollback=True):
        suite = example_runs.insert_ladder(conn)
        conn.execute(
            "UPDATE keyhole.training_matrix SET update_sigma = 'NaN', weight_sigma = 0 WHERE layer = 1 AND run_id IN "
            "(SELECT run.id FROM keyhole.run JOIN keyhole.suite_job USING (job_id) WHERE suite_id = %s)",
            (suite,),
        )
        rows = conn.execute(
            "SELECT update_exponent, weight_exponent FROM analysis.width_growth WHERE suite_id = %s AND step = 500",
            (suite,),
        ).fetchall()
    assert len(rows) == 2 and all(0.3 < value < 0.9 for row in rows for value in row)
