//! Reserve: one durable commit for a whole batch of purchases of one sale.

use std::collections::HashMap;

use jiff::Timestamp;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::{Error, Store, commit, timestamp};
use crate::crash::{self, Point};
use crate::domain::{
    Buyer, IdempotencyDigest, OrderId, OrderStatus, PaymentMethod, RequestId, SaleId, Stock,
};
use crate::metrics::Pool;

/// How often a batch is cut to what is free and tried again before it gives up. Each failure means that another engine's
/// batch got through, so this is only reached under a storm of engines.
const MAX_TRIES: usize = 12;

/// How often a batch is run again because of an id that exists.
const MAX_ID_CONFLICTS: usize = 2;

/// An order to be made.
#[derive(Debug, Clone)]
pub struct NewOrder {
    /// Its name, minted before the gate was asked.
    pub order: OrderId,
    /// Its buyer.
    pub buyer: Buyer,
    /// The name of the purchase.
    pub digest: IdempotencyDigest,
    /// Its units.
    pub quantity: i32,
    /// What they cost together.
    pub amount_minor: i64,
    /// What the buyer pays with, where the purchase said so.
    pub payment_method: Option<PaymentMethod>,
    /// The request that brought it.
    pub request_id: Option<RequestId>,
}

impl NewOrder {
    pub(super) fn request_id(&self) -> Option<&str> {
        self.request_id.as_ref().map(RequestId::as_str)
    }

    pub(super) fn payment_method(&self) -> Option<&str> {
        self.payment_method.as_ref().map(PaymentMethod::as_str)
    }
}

/// Under which of the gate's epochs a batch was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epoch {
    /// The gate admitted it; when the sale has moved on since, nothing may be committed.
    Exactly(i64),
    /// The gate was not asked. The epoch is raised, so that nothing admitted by keys that don't know of this batch can be
    /// committed after it.
    Raise,
    /// The same, for a batch whose first commit went unanswered: it may have been in time then, so it isn't asked again whether the
    /// sale is open.
    RaiseAgain,
}

impl Epoch {
    /// The epoch that the gate named, where it was asked.
    pub fn admitted_under(self) -> Option<i64> {
        match self {
            Self::Exactly(epoch) => Some(epoch),
            Self::Raise | Self::RaiseAgain => None,
        }
    }

    /// For the same batch once more, to find out what became of it.
    #[must_use]
    pub fn again(self) -> Self {
        match self {
            Self::Raise => Self::RaiseAgain,
            same => same,
        }
    }
}

/// What became of one order of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// It exists now. (Or it was made by an earlier run of the same batch whose outcome was unknown.)
    New {
        /// When.
        created_at: Timestamp,
        /// This run made it, and no earlier one.
        fresh: bool,
        /// The request that brought it has the same name as this one.
        same_request: bool,
    },
    /// Another order has the same purchase's name.
    Existing(Existing),
    /// Fewer units were available.
    SoldOut,
    /// The buyer would hold more than the sale allows.
    LimitExceeded,
    /// The sale had not begun, by the database's clock. Only told where the gate was not asked.
    NotOpen,
    /// The sale was over, by the database's clock. Only told where the gate was not asked.
    Closed,
    /// The database refused this row for itself, whatever batch it is in.
    Bad(String),
}

/// An order that was there before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Existing {
    /// Its name.
    pub order: OrderId,
    /// Its units.
    pub quantity: i32,
    /// What they cost together.
    pub amount_minor: i64,
    /// When it was made.
    pub created_at: Timestamp,
    /// The request that brought it.
    pub request_id: Option<RequestId>,
}

/// What became of a batch.
#[derive(Debug)]
pub enum Reserve {
    /// Committed: one answer per order, in the order of the batch.
    Done {
        /// The answers.
        placed: Vec<Placed>,
        /// The stock afterwards; `None` when nothing was taken.
        stock: Option<Stock>,
        /// Less was there than the batch asked for: the gate, if it was asked, had it wrong.
        cut: bool,
    },
    /// The sale has moved to another epoch; nothing was committed.
    StaleEpoch,
}

/// One try at a batch.
enum Try {
    Committed {
        placed: HashMap<IdempotencyDigest, Placed>,
        stock: Option<Stock>,
    },
    StaleEpoch,
    /// The inventory's CHECK or a buyer's limit refused the sum.
    Short,
}

impl Store {
    /// Makes the orders of a batch durable, with their stock entries, allotments, and what they take from the inventory.
    ///
    /// Orders whose purchase exists already are answered with the one that exists, and take nothing. When fewer units are
    /// available than the batch asks for it is decided again first come, first served. A row that the database refuses for
    /// itself is found by halving; the others commit.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`]: run the same batch again, with the same ids. [`Error::Unavailable`]: nothing was committed.
    pub async fn reserve(
        &self,
        sale: SaleId,
        per_buyer_limit: Option<i32>,
        orders: &[NewOrder],
        epoch: Epoch,
    ) -> Result<Reserve, Error> {
        match self.reserve_whole(sale, per_buyer_limit, orders, epoch).await {
            Err(error) if error.is_bad_data() => {
                if let [single] = orders {
                    tracing::warn!(order_id = %single.order, %error, "an order was refused by the database");
                    return Ok(Reserve::Done {
                        placed: vec![Placed::Bad(error.to_string())],
                        stock: None,
                        cut: false,
                    });
                }
                let (left, right) = orders.split_at(orders.len() / 2);
                let left = Box::pin(self.reserve(sale, per_buyer_limit, left, epoch)).await?;
                // The left half may have raised the epoch; the right half raises it again, or is admitted by the same keys.
                let right = Box::pin(self.reserve(sale, per_buyer_limit, right, epoch))
                    .await
                    .map_err(|error| {
                        // A half is committed: the whole is found out about by running it again.
                        Error::OutcomeUnknown(format!(
                            "half of the batch is committed; the other half: {error}"
                        ))
                    })?;
                Ok(match (left, right) {
                    (
                        Reserve::Done {
                            mut placed,
                            stock: before,
                            cut: cut_left,
                        },
                        Reserve::Done {
                            placed: more,
                            stock: after,
                            cut: cut_right,
                        },
                    ) => {
                        placed.extend(more);
                        Reserve::Done {
                            placed,
                            stock: after.or(before),
                            cut: cut_left || cut_right,
                        }
                    }
                    // The half that was committed is found again, by its ids, when the whole batch is run again.
                    _ => Reserve::StaleEpoch,
                })
            }
            result => result,
        }
    }

    async fn reserve_whole(
        &self,
        sale: SaleId,
        per_buyer_limit: Option<i32>,
        orders: &[NewOrder],
        epoch: Epoch,
    ) -> Result<Reserve, Error> {
        let mut decided: Vec<Option<Placed>> = vec![None; orders.len()];
        let mut cut = false;
        let (mut run_again, mut id_conflicts) = (0, 0);
        if epoch.admitted_under().is_none() {
            self.plan(sale, per_buyer_limit, orders, epoch == Epoch::Raise, &mut decided)
                .await?;
        }
        for _ in 0..MAX_TRIES {
            let wanted: Vec<&NewOrder> = orders
                .iter()
                .zip(&decided)
                .filter(|(_, placed)| placed.is_none())
                .map(|(order, _)| order)
                .collect();
            let outcome = if wanted.is_empty() {
                Ok(Try::Committed {
                    placed: HashMap::new(),
                    stock: None,
                })
            } else {
                self.try_reserve(sale, per_buyer_limit, &wanted, epoch).await
            };
            match outcome {
                Ok(Try::Committed { mut placed, stock }) => {
                    let placed = orders
                        .iter()
                        .zip(decided)
                        .map(|(order, refused)| {
                            refused.or_else(|| placed.remove(&order.digest)).ok_or_else(|| {
                                Error::Unexpected(format!(
                                    "order {} is missing from its own batch",
                                    order.order
                                ))
                            })
                        })
                        .collect::<Result<_, _>>()?;
                    return Ok(Reserve::Done { placed, stock, cut });
                }
                Ok(Try::StaleEpoch) => return Ok(Reserve::StaleEpoch),
                Ok(Try::Short) => {
                    cut = true;
                    decided.fill(None);
                    self.plan(sale, per_buyer_limit, orders, epoch == Epoch::Raise, &mut decided)
                        .await?;
                }
                Err(Error::RunAgain(reason)) if run_again < MAX_TRIES => {
                    run_again += 1;
                    tracing::debug!(%reason, "running a reserve batch again");
                }
                // Another engine has just made an order of the same purchase under the same id, between this insert's look at
                // the purchase's key and its own entry. The next run meets it by that key. (An id that is occupied for
                // good has no such key, and is refused again.)
                Err(error) if error.violates("orders_pkey") && id_conflicts < MAX_ID_CONFLICTS => {
                    id_conflicts += 1;
                    tracing::debug!(%error, "running a reserve batch again");
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unavailable(
            "the batch lost against others too often".to_owned(),
        ))
    }

    /// Decides first come, first served what a batch may ask for, by what is committed now. Only advice: the
    /// constraints decide.
    async fn plan(
        &self,
        sale: SaleId,
        per_buyer_limit: Option<i32>,
        orders: &[NewOrder],
        check_times: bool,
        decided: &mut [Option<Placed>],
    ) -> Result<(), Error> {
        self.decided(Pool::Reserve, async |conn| {
            let (available, not_open, closed): (i32, bool, bool) = sqlx::query_as(
                "SELECT i.available, clock_timestamp() < s.opens_at, coalesce(clock_timestamp() >= s.closes_at, false)
                 FROM inventory i JOIN sales s ON s.id = i.sale_id WHERE i.sale_id = $1",
            )
            .bind(sale.0)
            .fetch_one(&mut *conn)
            .await?;
            let digests: Vec<Uuid> = orders.iter().map(|order| order.digest.0).collect();
            let existing: Vec<Uuid> = sqlx::query_scalar(
                "SELECT idempotency_digest FROM orders WHERE sale_id = $1 AND idempotency_digest = ANY($2)",
            )
            .bind(sale.0)
            .bind(&digests)
            .fetch_all(&mut *conn)
            .await?;
            let mut used: HashMap<String, i64> = HashMap::new();
            if per_buyer_limit.is_some() {
                let buyers: Vec<&str> = orders.iter().map(|order| order.buyer.as_str()).collect();
                used = sqlx::query_as::<_, (String, i32)>(
                    "SELECT buyer, used FROM buyer_allotments WHERE sale_id = $1 AND buyer = ANY($2)",
                )
                .bind(sale.0)
                .bind(&buyers)
                .fetch_all(&mut *conn)
                .await?
                .into_iter()
                .map(|(buyer, used)| (buyer, i64::from(used)))
                .collect();
            }
            let mut free = i64::from(available);
            for (order, decision) in orders.iter().zip(decided) {
                if existing.contains(&order.digest.0) {
                    continue; // the insert answers it, and takes nothing for it
                }
                let quantity = i64::from(order.quantity);
                let held = used.entry(order.buyer.as_str().to_owned()).or_default();
                *decision = if check_times && closed {
                    Some(Placed::Closed)
                } else if check_times && not_open {
                    Some(Placed::NotOpen)
                } else if per_buyer_limit.is_some_and(|limit| *held + quantity > i64::from(limit)) {
                    Some(Placed::LimitExceeded)
                } else if quantity > free {
                    Some(Placed::SoldOut)
                } else {
                    free -= quantity;
                    *held += quantity;
                    None
                };
            }
            Ok(())
        })
        .await
    }

    async fn try_reserve(
        &self,
        sale: SaleId,
        per_buyer_limit: Option<i32>,
        orders: &[&NewOrder],
        epoch: Epoch,
    ) -> Result<Try, Error> {
        self.decided(Pool::Reserve, async |conn| {
            // In the order of the unique key, so that two engines with the same purchases wait for each other in one order.
            let mut sorted = orders.to_vec();
            sorted.sort_unstable_by_key(|order| order.digest);
            let column = |f: fn(&NewOrder) -> Uuid| sorted.iter().map(|order| f(order)).collect::<Vec<_>>();

            let mut tx = conn.begin().await?;
            // DO UPDATE and not DO NOTHING: it waits for a transaction in flight that has the same purchase, and so tells
            // the truth about a commit whose answer was lost. A fresh row has no xmax.
            let rows = sqlx::query(
                "WITH ins AS (
                    INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer, payment_method, request_id)
                    SELECT o.id, $1, o.digest, o.amount_minor, o.quantity, o.buyer, o.payment_method, o.request_id
                    FROM unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::int[], $6::text[], $7::text[], $8::text[])
                        AS o (id, digest, amount_minor, quantity, buyer, payment_method, request_id)
                    ON CONFLICT ON CONSTRAINT orders_idempotency DO UPDATE SET touch = orders.touch + 1
                    RETURNING id, idempotency_digest, quantity, amount_minor, created_at, request_id, (xmax = 0) AS fresh
                ), entries AS (
                    INSERT INTO stock_entries (sale_id, order_id, kind, delta)
                    SELECT $1, id, 'RESERVE', -quantity FROM ins WHERE fresh
                )
                SELECT id, idempotency_digest, quantity, amount_minor, micros(created_at) AS created_at_us, request_id, fresh FROM ins",
            )
            .bind(sale.0)
            .bind(column(|order| order.order.0))
            .bind(column(|order| order.digest.0))
            .bind(sorted.iter().map(|order| order.amount_minor).collect::<Vec<_>>())
            .bind(sorted.iter().map(|order| order.quantity).collect::<Vec<_>>())
            .bind(sorted.iter().map(|order| order.buyer.as_str()).collect::<Vec<_>>())
            .bind(sorted.iter().map(|order| order.payment_method()).collect::<Vec<_>>())
            .bind(sorted.iter().map(|order| order.request_id()).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await?;

            let by_digest: HashMap<IdempotencyDigest, &NewOrder> =
                sorted.iter().map(|order| (order.digest, *order)).collect();
            let mut placed = HashMap::with_capacity(rows.len());
            let mut per_buyer: HashMap<&str, i64> = HashMap::new();
            let mut units = 0_i64;
            for row in rows {
                let order = OrderId(row.try_get("id")?);
                let digest = IdempotencyDigest(row.try_get("idempotency_digest")?);
                let quantity: i32 = row.try_get("quantity")?;
                let created_at = timestamp(row.try_get("created_at_us")?);
                let Some(ours) = by_digest.get(&digest) else {
                    return Err(Error::Unexpected(format!("order {order} was not asked for")));
                };
                let answer = if row.try_get("fresh")? {
                    units += i64::from(quantity);
                    *per_buyer.entry(ours.buyer.as_str()).or_default() += i64::from(quantity);
                    Placed::New {
                        created_at,
                        fresh: true,
                        same_request: true,
                    }
                } else {
                    let request_id = row.try_get::<Option<&str>, _>("request_id")?.map(RequestId::new);
                    if order == ours.order {
                        // By an earlier run of this batch, or by another engine.
                        Placed::New {
                            created_at,
                            fresh: false,
                            same_request: request_id == ours.request_id,
                        }
                    } else {
                        Placed::Existing(Existing {
                            order,
                            quantity,
                            amount_minor: row.try_get("amount_minor")?,
                            created_at,
                            request_id,
                        })
                    }
                };
                placed.insert(digest, answer);
            }
            if units == 0 {
                commit(tx).await?;
                return Ok(Try::Committed { placed, stock: None });
            }

            if let Some(limit) = per_buyer_limit {
                if per_buyer.values().any(|units| *units > i64::from(limit)) {
                    return Ok(Try::Short);
                }
                let mut allotments: Vec<(&str, i32)> = per_buyer
                    .iter()
                    .map(|(buyer, units)| (*buyer, *units as i32))
                    .collect();
                allotments.sort_unstable();
                let granted = sqlx::query(
                    "INSERT INTO buyer_allotments (sale_id, buyer, used)
                     SELECT $1, a.buyer, a.units FROM unnest($2::text[], $3::int[]) AS a (buyer, units)
                     ON CONFLICT (sale_id, buyer) DO UPDATE SET used = buyer_allotments.used + excluded.used
                        WHERE buyer_allotments.used + excluded.used <= $4",
                )
                .bind(sale.0)
                .bind(allotments.iter().map(|(buyer, _)| *buyer).collect::<Vec<_>>())
                .bind(allotments.iter().map(|(_, units)| *units).collect::<Vec<_>>())
                .bind(limit)
                .execute(&mut *tx)
                .await?
                .rows_affected();
                if granted != allotments.len() as u64 {
                    return Ok(Try::Short);
                }
            }

            // The hot row, last and shortest. CHECK decides whether there is enough; the epoch whether the gate's word still counts.
            let (expected, raise) = match epoch {
                Epoch::Exactly(epoch) => (Some(epoch), 0_i64),
                Epoch::Raise | Epoch::RaiseAgain => (None, 1),
            };
            let updated = sqlx::query_as::<_, (i32, i32, i32, i32)>(
                "UPDATE inventory SET available = available - $2, held = held + $2, epoch = epoch + $4
                 WHERE sale_id = $1 AND ($3::bigint IS NULL OR epoch = $3)
                 RETURNING quantity, available, held, sold",
            )
            .bind(sale.0)
            .bind(units as i32)
            .bind(expected)
            .bind(raise)
            .fetch_optional(&mut *tx)
            .await;
            let stock = match updated.map_err(Error::from) {
                Ok(Some((quantity, available, held, sold))) => Stock {
                    quantity: quantity.into(),
                    available: available.into(),
                    held: held.into(),
                    sold: sold.into(),
                },
                Ok(None) => return Ok(Try::StaleEpoch),
                Err(error) if error.violates("inventory_available_in_range") => return Ok(Try::Short),
                Err(error) => return Err(error),
            };
            crash::at(Point::ReserveBeforeCommit);
            commit(tx).await?;
            crash::at(Point::ReserveCommitted);
            Ok(Try::Committed {
                placed,
                stock: Some(stock),
        })
        })
        .await
    }

    /// Finds the orders of these purchases, if they exist, without writing anything.
    pub async fn find_existing(
        &self,
        sale: SaleId,
        digests: &[IdempotencyDigest],
    ) -> Result<HashMap<IdempotencyDigest, Existing>, Error> {
        self.asked(Pool::Read, async |conn| {
            let rows = sqlx::query_as::<_, (Uuid, Uuid, i32, i64, i64, Option<String>)>(
                "SELECT idempotency_digest, id, quantity, amount_minor, micros(created_at), request_id
             FROM orders WHERE sale_id = $1 AND idempotency_digest = ANY($2)",
            )
            .bind(sale.0)
            .bind(digests.iter().map(|digest| digest.0).collect::<Vec<_>>())
            .fetch_all(&mut *conn)
            .await?;
            Ok(rows
                .into_iter()
                .map(
                    |(digest, order, quantity, amount_minor, created_at_us, request_id)| {
                        let created_at = timestamp(created_at_us);
                        (
                            IdempotencyDigest(digest),
                            Existing {
                                order: OrderId(order),
                                quantity,
                                amount_minor,
                                created_at,
                                request_id: request_id.as_deref().map(RequestId::new),
                            },
                        )
                    },
                )
                .collect())
        })
        .await
    }

    /// Occupies the ids of orders that must never come into being, so that their units may be given back in the gate.
    ///
    /// Returns those that are occupied now (or were before): they can be released and forgotten. The others exist as
    /// orders; a decision stands, and must be followed.
    pub async fn occupy(
        &self,
        sale: SaleId,
        reservations: &[(OrderId, Buyer, i32)],
    ) -> Result<Vec<OrderId>, Error> {
        self.decided(Pool::Settle, async |conn| {
            let mut sorted = reservations.to_vec();
            sorted.sort_unstable_by_key(|(order, ..)| *order);
            let ids: Vec<Uuid> = sorted.iter().map(|(order, ..)| order.0).collect();
            let mut tx = conn.begin().await?;
            // The amount of an order that never was; the column wants one.
            sqlx::query(
                "INSERT INTO orders (id, sale_id, amount_minor, quantity, buyer, status)
             SELECT o.id, $1, 1, o.quantity, o.buyer, 'REJECTED'
             FROM unnest($2::uuid[], $3::int[], $4::text[]) AS o (id, quantity, buyer)
             ON CONFLICT (id, sale_id) DO NOTHING",
            )
            .bind(sale.0)
            .bind(&ids)
            .bind(
                sorted
                    .iter()
                    .map(|(_, _, quantity)| *quantity)
                    .collect::<Vec<_>>(),
            )
            .bind(
                sorted
                    .iter()
                    .map(|(_, buyer, _)| buyer.as_str())
                    .collect::<Vec<_>>(),
            )
            .execute(&mut *tx)
            .await?;
            let occupied: Vec<(Uuid, String)> =
                sqlx::query_as("SELECT id, status::text FROM orders WHERE id = ANY($1) AND sale_id = $2")
                    .bind(&ids)
                    .bind(sale.0)
                    .fetch_all(&mut *tx)
                    .await?;
            commit(tx).await?;
            crash::at(Point::RejectCommitted);
            Ok(occupied
                .into_iter()
                .filter(|(_, status)| status == OrderStatus::Rejected.as_sql())
                .map(|(id, _)| OrderId(id))
                .collect())
        })
        .await
    }
}
