"""The spine: tenant, outbox, fence, delivery, dead letters, and the functions of the protocol."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the files of `sql/0001` in the order of their names."""
    cursor = op.get_bind().connection.cursor()  # the driver's own: SQLAlchemy would take each % for a parameter
    for file in sorted((Path(__file__).parent.parent / "sql" / revision).glob("*.sql")):
        cursor.execute(file.read_text("utf-8"))
    cursor.close()
