"""What a ledger outlives: deadlocks with other writers."""

import threading

import psycopg

from tests.conftest import MigratedDatabase
from workers.lifecycle import Ledger


def test_whoever_loses_a_deadlock_is_called_again(database: MigratedDatabase) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE pair (id integer PRIMARY KEY, taken integer NOT NULL DEFAULT 0)")
        conn.execute("INSERT INTO pair VALUES (1), (2)")
    both_hold_one = threading.Barrier(2)
    calls = []

    def take(first: int) -> None:
        ledger, again = Ledger(database.owner_url, patience_s=5), False

        def work(conn: psycopg.Connection) -> None:
            nonlocal again
            calls.append((first, conn.info.backend_pid))
            conn.execute("UPDATE pair SET taken = taken + 1 WHERE id = %s", (first,))
            if not again:
                again = True
                both_hold_one.wait(30)
            conn.execute("UPDATE pair SET taken = taken + 1 WHERE id = %s", (3 - first,))

        ledger.transact(work)
        ledger.close()

    threads = [threading.Thread(target=take, args=(first,)) for first in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.connect() as conn:
        assert conn.execute("SELECT taken FROM pair ORDER BY id").fetchall() == [(2,), (2,)]
    assert len(calls) == 3, "one of them was called twice"
    assert len({pid for _, pid in calls}) == 2, "on the connection that it had"
