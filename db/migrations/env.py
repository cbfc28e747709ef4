"""Run by Alembic for each upgrade: uses the connection that db.migrate hands over."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table_schema="keyhole",
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
