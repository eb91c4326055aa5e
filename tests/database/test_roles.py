"""Roles belong to a whole server: whoever makes them may meet somebody who does the same, for the same database or another."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
from psycopg import sql

from notif.adapters.embedded_postgres import EmbeddedPostgres
from notif.adapters.postgres import roles

TOGETHER, ROUNDS = 4, 3


def test_roles_made_by_several_at_once_are_there() -> None:
    """On a server of its own, where no role is there yet."""
    barrier = threading.Barrier(TOGETHER)
    databases = ("one", "two")

    def make(url: str) -> None:
        for _ in range(ROUNDS):
            barrier.wait(30)
            try:
                roles.create(url, dict.fromkeys(roles.ROLES, "secret"), own_database=True)
            except BaseException:
                barrier.abort()
                raise

    with EmbeddedPostgres() as server:
        with psycopg.connect(server.admin_url, autocommit=True) as connection:
            for name in databases:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        urls = [server.url_for("postgres", server.password, name) for name in databases]
        with ThreadPoolExecutor(TOGETHER) as pool:
            made = [pool.submit(make, urls[number % 2]) for number in range(TOGETHER)]
        failed = [error for each in made if (error := each.exception())]
        assert [error for error in failed if not isinstance(error, threading.BrokenBarrierError)] == []
        for name in databases:
            with psycopg.connect(server.url_for("notif_owner", "secret", name)) as connection:
                connection.execute("CREATE SCHEMA core")
