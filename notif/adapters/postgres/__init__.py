"""PostgreSQL by SQLAlchemy and psycopg: the source of truth. SQL lives in versioned functions, see `notif/migrations/sql`."""
