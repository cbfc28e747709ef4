"""Alerts posted to the webhooks of their watches: at least once, tried again with growing waits, then given up.

Alerts are taken in a transaction that puts them off to the next try, then posted without one. So two processes do not
post the same at once, and what dies in between is posted again: a receiver may get an alert twice, and knows it by
its number.
"""

import asyncio

from db.repositories import alert_deliveries
from db.repositories.alert_deliveries import Parcel
from services.api import webhooks
from services.api.alert_views import alert_view
from services.api.follower import Follower, Surroundings
from services.contracts.watches import WebhookBody, WebhookWatch

WAITS_S = (10.0, 60.0, 300.0, 1800.0, 7200.0)  # after the first try, the second, …
TRIES = len(WAITS_S) + 1
MOST_ALERTS = 100  # in one post
MOST_POSTS = 8  # at once


async def deliver(surroundings: Surroundings) -> None:
    """Post what is due."""
    parcels = await surroundings.in_thread(_take, surroundings)
    await asyncio.gather(*(_deliver(surroundings, parcel) for parcel in parcels))


def _take(surroundings: Surroundings) -> list[Parcel]:
    taken: list[Parcel] = []
    with surroundings.pool.connection() as conn:
        while len(taken) < MOST_POSTS:
            parcel = alert_deliveries.take(conn, most=MOST_ALERTS, waits_s=WAITS_S)
            if parcel is None:
                break
            taken.append(parcel)
    return taken


async def _deliver(surroundings: Surroundings, parcel: Parcel) -> None:
    problem = None
    try:
        url = parcel.body.get("webhook")
        if url is None:
            raise webhooks.NotDelivered("the watch has no webhook")
        await webhooks.post(url, body_of(parcel).model_dump_json().encode(), surroundings.settings)
    except webhooks.NotDelivered as error:
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"[:300]
    await surroundings.in_thread(_store, surroundings, [each.id for each in parcel.alerts], problem)


def body_of(parcel: Parcel) -> WebhookBody:
    """What is posted. ``text`` is what chat services show."""
    first = parcel.alerts[0]
    number = len(parcel.alerts)
    head = f"Keyhole watch {parcel.watch_id} {first.watch_name!r} on {parcel.target}: "
    lines = [f"• {each.message}" for each in parcel.alerts[:20]]
    if number > len(lines):
        lines.append(f"… and {number - len(lines)} more")
    return WebhookBody(
        watch=WebhookWatch(id=parcel.watch_id, name=first.watch_name, target=parcel.target),
        text=head + (f"{number} alerts" if number > 1 else "an alert") + "\n" + "\n".join(lines),
        alerts=[alert_view(each) for each in parcel.alerts],
    )


def _store(surroundings: Surroundings, alert_ids: list[int], problem: str | None) -> None:
    with surroundings.pool.connection() as conn:
        if problem is None:
            alert_deliveries.delivered(conn, alert_ids)
        else:
            alert_deliveries.failed(conn, alert_ids, problem, tries=TRIES)


FOLLOWER = Follower("webhooks", deliver)
