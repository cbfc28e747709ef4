"""Tables of the spine: the SQL file of the same name."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Through the driver itself: SQLAlchemy would prepare the text, and a prepared statement cannot hold several.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
