"""The spine: tenant, outbox, fence, delivery, dead letters, and the functions of the protocol."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the files of `sql/0001` in the order of their names."""
    connection = op.get_bind()
    for file in sorted((Path(__file__).parent.parent / "sql" / revision).glob("*.sql")):
        # Without parameters, or each % of the SQL would be taken for one.
        connection.exec_driver_sql(file.read_text("utf-8"), execution_options={"no_parameters": True})
