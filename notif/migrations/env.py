"""Alembic's entry: runs on the connection, and in the transaction, that `notif.adapters.alembic` opened."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=None,
    version_table="notif_version",
    version_table_schema="core",
)
with context.begin_transaction():
    context.run_migrations()
