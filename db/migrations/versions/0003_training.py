"""Runs, metrics, checkpoints, stages of suites, sweeps, watches, alerts: the SQL files of the folder beside it."""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Through the driver itself: SQLAlchemy would prepare the text, and a prepared statement cannot hold several.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    for path in sorted(Path(__file__).with_suffix("").glob("*.sql")):
        driver.execute(path.read_text(encoding="utf-8"))
