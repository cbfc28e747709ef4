"""Alerts on their way to webhooks: taken one watch at a time, by one sender at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row

from db.repositories import alerts
from db.repositories.alerts import AlertRow


@dataclass(frozen=True)
class Parcel:
    """Alerts of one watch that are to be sent together."""

    watch_id: int
    body: dict[str, Any]  # of the watch
    target: str
    alerts: list[AlertRow]


def take(conn: Connection, *, most: int, waits_s: Sequence[float]) -> Parcel | None:
    """The alerts of one watch whose time has come, counted as tried; None if there are none.

    They are put off by the wait that follows their try before anything is sent: if the sender dies, or a second one
    looks, they are sent again then and not before. After the last wait there is no further try: what was tried more
    often than there are waits, by a sender that died, is given up.
    """
    with conn.transaction():
        conn.execute(
            """
            UPDATE keyhole.alert SET deliver_at = NULL,
                delivery_problem = format('given up after %%s tries: the last one ended without an answer', deliveries)
            WHERE deliver_at <= clock_timestamp() AND deliveries > %s
            """,
            (len(waits_s),),
        )
        chosen = conn.execute(
            """
            WITH due AS (
                SELECT watch_id FROM keyhole.alert WHERE deliver_at <= clock_timestamp()
                ORDER BY deliver_at LIMIT 1 FOR UPDATE SKIP LOCKED
            ), chosen AS (
                SELECT id FROM keyhole.alert
                WHERE watch_id = (SELECT watch_id FROM due) AND deliver_at <= clock_timestamp()
                ORDER BY id LIMIT %(most)s FOR UPDATE SKIP LOCKED
            )
            UPDATE keyhole.alert SET deliveries = deliveries + 1,
                deliver_at = clock_timestamp() + make_interval(secs => (%(waits)s::float8[])[
                    least(deliveries + 1, cardinality(%(waits)s::float8[]))])
            FROM chosen WHERE alert.id = chosen.id RETURNING alert.id, alert.watch_id
            """,
            {"most": most, "waits": list(waits_s)},
        ).fetchall()
        if not chosen:
            return None
        watch = conn.execute("SELECT body, target FROM keyhole.watch WHERE id = %s", (chosen[0][1],)).fetchone()
        assert watch is not None, "alerts go with their watch"
        with conn.cursor(row_factory=class_row(AlertRow)) as cursor:
            rows = cursor.execute(
                alerts.SELECT + "WHERE alert.id = ANY(%s) ORDER BY alert.id", ([alert_id for alert_id, _ in chosen],)
            ).fetchall()
    return Parcel(chosen[0][1], watch[0], watch[1], rows)


def delivered(conn: Connection, alert_ids: Sequence[int]) -> None:
    conn.execute(
        "UPDATE keyhole.alert SET delivered_at = clock_timestamp(), deliver_at = NULL, delivery_problem = NULL "
        "WHERE id = ANY(%s)",
        (list(alert_ids),),
    )


def failed(conn: Connection, alert_ids: Sequence[int], problem: str, *, tries: int) -> None:
    """Store what a delivery met; alerts that were tried so often are given up."""
    conn.execute(
        """
        UPDATE keyhole.alert SET
            delivery_problem = CASE WHEN deliveries >= %(tries)s THEN format('given up after %%s tries: ', deliveries)
                ELSE '' END || %(problem)s,
            deliver_at = CASE WHEN deliveries >= %(tries)s THEN NULL ELSE deliver_at END
        WHERE id = ANY(%(ids)s) AND delivered_at IS NULL
        """,
        {"ids": list(alert_ids), "problem": problem, "tries": tries},
    )
