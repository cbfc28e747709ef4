"""Tables of the spine: the SQL file of the same name, and the comments beside it."""

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
    for name in ("0001_spine.sql", "0001_spine_comments.sql"):
        driver.execute(Path(__file__).with_name(name).read_text(encoding="utf-8"))
