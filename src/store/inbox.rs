//! The inbox of webhooks: an event is a row before anybody is told that it was received, and stays until it is applied.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{Connection, Row};

use super::{Error, Store, commit};
use crate::crash::{self, Point};
use crate::domain::{
    ChargeName, Found, Money, News, OrderId, OrderStatus, PaymentStatus, ProviderEvent, SaleId,
};
use crate::metrics::Pool;

/// The first pause of an event whose order isn't there yet, and the longest: it doubles in between.
const FIRST_PAUSE_MS: i64 = 100;
const LAST_PAUSE_MS: i64 = 60_000;

/// A verified request with an event in it.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Whose.
    pub provider: &'static str,
    /// What it says.
    pub event: ProviderEvent,
    /// Its body as it came.
    pub body: String,
    /// The request's name in logs.
    pub request_id: String,
    /// When it came. The database's clock says what time that was.
    pub received: Instant,
}

/// Whether an event had been received before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// It is new.
    First,
    /// It was in the inbox already.
    Repeat,
}

/// An event that is to be applied, on loan until it is due again.
#[derive(Debug, Clone)]
pub struct DueEvent {
    /// Whose.
    pub provider: String,
    /// The provider's name for it.
    pub id: String,
    /// What it says of the charge.
    pub news: News,
    /// Which charge; `None` where it is about something else.
    pub charge: Option<ChargeName>,
    /// How much it says the charge was.
    pub amount: Option<Money>,
    /// The provider's word for why.
    pub code: Option<String>,
    /// Which of the charge's refunds it is about, if it is about one.
    pub refund: Option<i32>,
    /// How often it was taken, this time included.
    pub tries: i32,
    /// The request that brought it first.
    pub request_id: Option<String>,
    /// What it meets; `None` while its order or payment isn't there.
    pub met: Option<Met>,
}

/// An order and its payment, as they were when the event was taken.
#[derive(Debug, Clone, Copy)]
pub struct Met {
    /// The order's sale.
    pub sale: SaleId,
    /// The fence under which the order is, if somebody has claimed it.
    pub fence: i32,
    /// How things stand.
    pub found: Found,
    /// What the charge was to be.
    pub amount: Money,
}

/// The end of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventEnd {
    /// It changed something.
    Applied,
    /// The books said so already, or it came too late to matter.
    NoChange,
    /// It says nothing that is known here.
    Ignored,
    /// Its order never came, or it contradicts our books; somebody has to look.
    GivenUp,
}

impl EventEnd {
    fn as_sql(self) -> &'static str {
        match self {
            Self::Applied => "APPLIED",
            Self::NoChange => "NO_CHANGE",
            Self::Ignored => "IGNORED",
            Self::GivenUp => "GIVEN_UP",
        }
    }
}

/// What became of an event that was taken.
#[derive(Debug, Clone)]
pub struct Handled {
    /// Which.
    pub event: DueEvent,
    /// Its end; `None` when it is to be tried again.
    pub end: Option<EventEnd>,
    /// What stood in the way.
    pub note: Option<String>,
}

/// A day's deliveries of one kind of event. Times are seconds between one delivery of an event and the next.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetriesOfDay {
    /// The day in UTC, as `YYYY-MM-DD`.
    pub day: String,
    /// Whose.
    pub provider: String,
    /// The provider's word for the kind.
    pub kind: String,
    /// Requests.
    pub deliveries: i64,
    /// Events in them.
    pub events: i64,
    /// Requests that repeated an event which had been delivered before, on this day or earlier.
    pub repeats: i64,
    /// Half of the repeats came sooner than this after the delivery before them.
    pub gap_p50_secs: Option<f64>,
    /// The longest time between two deliveries.
    pub gap_max_secs: Option<f64>,
}

/// Events that wait to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxState {
    /// So many.
    pub due: i64,
    /// The oldest of them was received so long ago.
    pub oldest: Option<Duration>,
}

impl Store {
    /// Writes deliveries down, all of them in one commit. Returns for each, in order, whether its event is new.
    ///
    /// # Errors
    /// Then nobody may be told that it was received: the provider sends it again.
    pub async fn receive(&self, deliveries: &[Delivery]) -> Result<Vec<Received>, Error> {
        self.run_again(|| self.try_receive(deliveries)).await
    }

    /// What the bug did that the inbox exists against: every delivery is an event.
    ///
    /// # Errors
    /// As for [`Self::receive`]; also where the walls of the database are still there.
    #[cfg(feature = "test-switches")]
    pub async fn receive_without_guard(&self, deliveries: &[Delivery]) -> Result<Vec<Received>, Error> {
        self.decided(Pool::Settle, async |conn| {
            for delivery in deliveries {
                let charge = delivery.event.charge;
                sqlx::query(
                    "INSERT INTO provider_events (provider, event_id, kind, news, order_id, attempt, body, deliveries)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, 1)",
                )
                .bind(delivery.provider)
                .bind(&delivery.event.id)
                .bind(&delivery.event.kind)
                .bind(delivery.event.news.as_sql())
                .bind(charge.map(|charge| charge.order.0))
                .bind(charge.map(|charge| charge.attempt))
                .bind(&delivery.body)
                .execute(&mut *conn)
                .await?;
            }
            Ok(vec![Received::First; deliveries.len()])
        })
        .await
    }

    async fn try_receive(&self, deliveries: &[Delivery]) -> Result<Vec<Received>, Error> {
        self.decided(Pool::Settle, async |conn| {
            // Each event once, in the order of its name: two batches never wait for each other crosswise.
            let mut events: BTreeMap<(&str, &str), (&Delivery, i32)> = BTreeMap::new();
            for delivery in deliveries {
                let event = events
                    .entry((delivery.provider, &delivery.event.id))
                    .or_insert((delivery, 0));
                event.1 += 1;
            }
            let mut tx = conn.begin().await?;
            let charge = |d: &Delivery| d.event.charge;
            let new: Vec<(String, String)> = sqlx::query_as(
                "WITH written AS (
                    INSERT INTO provider_events
                        (provider, event_id, kind, news, order_id, attempt, amount_minor, currency, code, body, deliveries, refund)
                    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::int[],
                                         $7::bigint[], $8::text[], $9::text[], $10::text[], $11::int[], $12::int[])
                    ON CONFLICT ON CONSTRAINT provider_events_once
                        DO UPDATE SET deliveries = provider_events.deliveries + excluded.deliveries
                    RETURNING provider, event_id, (xmax = 0) AS is_new
                )
                SELECT provider, event_id FROM written WHERE is_new",
            )
            .bind(events.values().map(|(d, _)| d.provider).collect::<Vec<_>>())
            .bind(events.values().map(|(d, _)| d.event.id.as_str()).collect::<Vec<_>>())
            .bind(events.values().map(|(d, _)| d.event.kind.as_str()).collect::<Vec<_>>())
            .bind(events.values().map(|(d, _)| d.event.news.as_sql()).collect::<Vec<_>>())
            .bind(events.values().map(|(d, _)| charge(d).map(|c| c.order.0)).collect::<Vec<_>>())
            .bind(events.values().map(|(d, _)| charge(d).map(|c| c.attempt)).collect::<Vec<_>>())
            .bind(events.values().map(|(d, _)| d.event.amount.map(|a| a.amount_minor)).collect::<Vec<_>>())
            .bind(
                events
                    .values()
                    .map(|(d, _)| d.event.amount.map(|a| a.currency.as_str().to_owned()))
                    .collect::<Vec<_>>(),
            )
            .bind(events.values().map(|(d, _)| d.event.code.as_deref()).collect::<Vec<_>>())
            .bind(events.values().map(|(d, _)| d.body.as_str()).collect::<Vec<_>>())
            .bind(events.values().map(|(_, times)| *times).collect::<Vec<_>>())
            .bind(
                events
                    .values()
                    .map(|(d, _)| d.event.refund.map(|refund| refund.number))
                    .collect::<Vec<_>>(),
            )
            .fetch_all(&mut *tx)
            .await?;
            sqlx::query(
                "INSERT INTO provider_event_deliveries (provider, event_id, kind, request_id, received_at)
                 SELECT provider, event_id, kind, request_id, clock_timestamp() - ago_us * interval '1 microsecond'
                 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
                    AS d (provider, event_id, kind, request_id, ago_us)",
            )
            .bind(deliveries.iter().map(|d| d.provider).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| d.event.id.as_str()).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| d.event.kind.as_str()).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| d.request_id.as_str()).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| d.received.elapsed().as_micros() as i64).collect::<Vec<_>>())
            .execute(&mut *tx)
            .await?;
            crash::at(Point::InboxBeforeCommit);
            commit(tx).await?;
            crash::at(Point::InboxCommitted);

            // Of several deliveries in this batch the first one brought the event.
            let mut new: HashSet<_> = new.into_iter().collect();
            Ok(deliveries
                .iter()
                .map(|d| {
                    if new.remove(&(d.provider.to_owned(), d.event.id.clone())) {
                        Received::First
                    } else {
                        Received::Repeat
                    }
                })
                .collect())
        })
        .await
    }

    /// Takes events that are due, with what they meet. Each is due again after `loan` and a pause that doubles with every try
    /// (0.1 s to 1 min): one whose worker dies is taken by another, and none while its worker may still be at it.
    pub async fn take_due_events(&self, limit: i64, loan: Duration) -> Result<Vec<DueEvent>, Error> {
        self.decided(Pool::Settle, async |conn| {
            let rows = sqlx::query(
                "WITH due AS MATERIALIZED (
                    SELECT e.provider, e.event_id FROM provider_events e
                    WHERE e.state = 'DUE' AND e.due_at <= clock_timestamp() ORDER BY e.due_at LIMIT $1 FOR UPDATE SKIP LOCKED
                ), taken AS (
                    UPDATE provider_events e
                    SET tries = e.tries + 1,
                        due_at = clock_timestamp()
                            + ($2 + least($4, $3 * power(2, least(e.tries, 20)))) * interval '1 millisecond'
                    FROM due d WHERE e.provider = d.provider AND e.event_id = d.event_id
                    RETURNING e.*
                )
                SELECT t.provider, t.event_id, t.news, t.order_id, t.attempt, t.amount_minor, t.currency, t.code, t.tries, t.refund,
                       o.sale_id, o.fence, o.status::text AS status, o.attempt AS current_attempt,
                       p.status AS payment, p.amount_minor AS charge_minor, p.currency AS charge_currency,
                       (SELECT d.request_id FROM provider_event_deliveries d
                        WHERE d.provider = t.provider AND d.event_id = t.event_id ORDER BY d.received_at LIMIT 1) AS request_id
                FROM taken t
                LEFT JOIN payments p ON p.order_id = t.order_id AND p.attempt = t.attempt
                LEFT JOIN orders o ON o.id = p.order_id AND o.sale_id = p.sale_id",
            )
            .bind(limit)
            .bind(loan.as_millis() as i64)
            .bind(FIRST_PAUSE_MS)
            .bind(LAST_PAUSE_MS)
            .fetch_all(&mut *conn)
            .await?;
            rows.iter().map(due_event).collect()
        })
        .await
    }

    /// Writes down what became of events that were taken. One that is to be tried again has its loan ended and its pause begun.
    pub async fn events_handled(&self, handled: &[Handled]) -> Result<(), Error> {
        self.run_again(|| self.try_events_handled(handled)).await
    }

    async fn try_events_handled(&self, handled: &[Handled]) -> Result<(), Error> {
        self.decided(Pool::Settle, async |conn| {
            sqlx::query(
                "WITH h AS MATERIALIZED (
                    -- Locked in the order of their names, as repeats of them lock them.
                    SELECT e.provider, e.event_id, w.state, w.note
                    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS w (provider, event_id, state, note)
                    JOIN provider_events e ON e.provider = w.provider AND e.event_id = w.event_id
                    ORDER BY e.provider COLLATE \"C\", e.event_id COLLATE \"C\" FOR UPDATE OF e
                 )
                 UPDATE provider_events e
                 SET state = coalesce(h.state, 'DUE'), last_error = h.note,
                     settled_at = CASE WHEN h.state IS NOT NULL THEN clock_timestamp() END,
                     due_at = clock_timestamp() + least($6, $5 * power(2, least(e.tries - 1, 20))) * interval '1 millisecond'
                 FROM h WHERE e.provider = h.provider AND e.event_id = h.event_id AND e.state = 'DUE'",
            )
            .bind(handled.iter().map(|h| h.event.provider.as_str()).collect::<Vec<_>>())
            .bind(handled.iter().map(|h| h.event.id.as_str()).collect::<Vec<_>>())
            .bind(handled.iter().map(|h| h.end.map(EventEnd::as_sql)).collect::<Vec<_>>())
            .bind(handled.iter().map(|h| h.note.as_deref()).collect::<Vec<_>>())
            .bind(FIRST_PAUSE_MS)
            .bind(LAST_PAUSE_MS)
            .execute(&mut *conn)
            .await?;
            Ok(())
        })
        .await
    }

    /// How many events wait to be applied, and for how long.
    pub async fn inbox_state(&self) -> Result<InboxState, Error> {
        self.asked(Pool::Read, async |conn| {
            let (due, oldest_ms): (i64, Option<i64>) = sqlx::query_as(
                "SELECT count(*), (extract(epoch FROM clock_timestamp() - min(received_at)) * 1000)::bigint
                 FROM provider_events WHERE state = 'DUE'",
            )
            .fetch_one(&mut *conn)
            .await?;
            Ok(InboxState {
                due,
                oldest: oldest_ms.map(|ms| Duration::from_millis(ms.max(0) as u64)),
            })
        })
        .await
    }

    /// How often the provider repeated itself, per day, provider and kind; the latest days first, `days` of them.
    pub async fn webhook_retries(&self, days: i32) -> Result<Vec<RetriesOfDay>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query(
                "WITH seen AS (
                    SELECT provider, event_id, kind, received_at,
                           received_at - lag(received_at) OVER (PARTITION BY provider, event_id ORDER BY received_at) AS gap
                    FROM provider_event_deliveries
                )
                SELECT to_char(received_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, provider, kind,
                       count(*) AS deliveries, count(DISTINCT event_id) AS events, count(gap) AS repeats,
                       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM gap)::float8) AS gap_p50,
                       max(extract(epoch FROM gap)::float8) AS gap_max
                FROM seen
                WHERE received_at >= date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
                                     - ($1 - 1) * interval '1 day'
                GROUP BY 1, 2, 3 ORDER BY 1 DESC, 2, 3",
            )
            .bind(days)
            .fetch_all(&mut *conn)
            .await?;
            rows.iter()
                .map(|row| {
                    Ok(RetriesOfDay {
                        day: row.try_get("day")?,
                        provider: row.try_get("provider")?,
                        kind: row.try_get("kind")?,
                        deliveries: row.try_get("deliveries")?,
                        events: row.try_get("events")?,
                        repeats: row.try_get("repeats")?,
                        gap_p50_secs: row.try_get("gap_p50")?,
                        gap_max_secs: row.try_get("gap_max")?,
                    })
                })
                .collect()
        })
        .await
    }
}

fn due_event(row: &PgRow) -> Result<DueEvent, Error> {
    let unknown = |what: &str, name: &str| Error::Unexpected(format!("unknown {what} {name}"));
    let order: Option<uuid::Uuid> = row.try_get("order_id")?;
    let attempt: Option<i32> = row.try_get("attempt")?;
    let money = |minor: &str, currency: &str| -> Result<Option<Money>, Error> {
        let amount: Option<i64> = row.try_get(minor)?;
        let currency: Option<&str> = row.try_get(currency)?;
        amount
            .zip(currency)
            .map(|(amount, currency)| super::read::money(amount, currency))
            .transpose()
    };
    let news: &str = row.try_get("news")?;
    let met = match (
        row.try_get::<Option<uuid::Uuid>, _>("sale_id")?,
        money("charge_minor", "charge_currency")?,
    ) {
        (Some(sale), Some(amount)) => {
            let (status, payment): (&str, &str) = (row.try_get("status")?, row.try_get("payment")?);
            Some(Met {
                sale: SaleId(sale),
                fence: row.try_get("fence")?,
                found: Found {
                    status: OrderStatus::from_sql(status).ok_or_else(|| unknown("status", status))?,
                    current: attempt == row.try_get("current_attempt")?,
                    payment: PaymentStatus::from_sql(payment).ok_or_else(|| unknown("status", payment))?,
                },
                amount,
            })
        }
        _ => None,
    };
    Ok(DueEvent {
        provider: row.try_get("provider")?,
        id: row.try_get("event_id")?,
        news: News::from_sql(news).ok_or_else(|| unknown("news", news))?,
        charge: order.zip(attempt).map(|(order, attempt)| ChargeName {
            order: OrderId(order),
            attempt,
        }),
        amount: money("amount_minor", "currency")?,
        code: row.try_get("code")?,
        refund: row.try_get("refund")?,
        tries: row.try_get("tries")?,
        request_id: row.try_get("request_id")?,
        met,
    })
}
