//! How a batch is decided: the gate admits, the database decides, everybody is answered.
//!
//! ```text
//! gate.reserve --admitted--> committer --committed with others' batches--> accepted
//!     | unprimed                 | something is in the way, or nobody knows
//!     '-> rebuild, once more     v
//!                            store.reserve --committed--> accepted
//!                                | epoch moved: rebuild, and once more
//!                                | less there than admitted: cut, occupy, rebuild
//!     gate away -----------------> store.reserve alone, raising the epoch
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Mutex;

use super::batch::Entry;
use super::committer::Committer;
use crate::actors::breaker::Breaker;
use crate::actors::payment_supervisor::Supervisor;
use crate::crash::{self, Point};
use crate::domain::{Accepted, IdempotencyDigest, Money, OrderId, OrderStatus, Refusal, Sale};
use crate::gate::{self, Gate, Release, Reservation, Verdict};
use crate::loading;
use crate::metrics::{self, By, GateOp, RebuildReason, What};
use crate::store::{self, Epoch, Existing, NewOrder, OpenOrder, Placed, Reserve, SaleBatch, Store};

/// How often a batch goes round (rebuild, another engine's rebuild, a released id) before it is sold through Postgres alone.
const MAX_ROUNDS: usize = 60;
/// How long to wait while another engine loads the sale's keys.
const LOADING_PAUSE: Duration = Duration::from_millis(25);
/// How often a batch whose commit went unanswered is run again to find out, with a pause that doubles from this one.
const UNKNOWN_TRIES: u32 = 4;
const UNKNOWN_PAUSE: Duration = Duration::from_millis(100);
/// When a buyer should come back while the database is away.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The answer to one purchase of a batch.
#[derive(Debug)]
pub struct Decided {
    /// Which purchase.
    pub digest: IdempotencyDigest,
    /// What its buyers are told.
    pub answer: Result<Accepted, Refusal>,
}

/// What all sales share.
pub struct Parts {
    /// Postgres.
    pub store: Store,
    /// Redis.
    pub gate: Gate,
    /// Open while Redis doesn't answer: batches then go to Postgres alone.
    pub gate_breaker: Breaker,
    /// Open while Postgres doesn't answer: purchases are then turned away at once.
    pub store_breaker: Arc<Breaker>,
    /// Who commits what the gate has admitted.
    pub committer: Arc<Committer>,
    /// Who charges what was accepted.
    pub supervisor: Supervisor,
}

/// Decides the batches of one sale. Two may be under way at once.
pub struct Decider {
    sale: Arc<Sale>,
    parts: Arc<Parts>,
    /// One rebuild at a time; whoever waited for another's is done with it.
    rebuild: Mutex<()>,
    rebuilds: AtomicU64,
    /// When the sale closes, as the last rebuild found it.
    closes_at: std::sync::Mutex<Option<Timestamp>>,
}

impl Decider {
    /// A decider for this sale.
    pub fn new(sale: Arc<Sale>, parts: Arc<Parts>) -> Self {
        Self {
            closes_at: std::sync::Mutex::new(sale.terms.closes_at),
            sale,
            parts,
            rebuild: Mutex::new(()),
            rebuilds: AtomicU64::new(0),
        }
    }

    /// Decides a batch. Never fails: each purchase has its answer. Also tells how many units were left, if it is known.
    pub async fn decide(&self, entries: Vec<Entry>) -> (Vec<Decided>, Option<i64>) {
        let mut batch = Batch {
            sale: &self.sale,
            decided: Vec::with_capacity(entries.len()),
            available: None,
        };
        let mut open = entries;
        for round in 0..=MAX_ROUNDS {
            // The breaker is asked once per batch: whoever is let through goes on to the end.
            if open.is_empty() || (round == 0 && !self.parts.store_breaker.allows(Instant::now())) {
                break;
            }
            let seen_rebuilds = self.rebuilds.load(Ordering::Acquire);
            let alone = round == MAX_ROUNDS || !self.parts.gate_breaker.allows(Instant::now());
            open = if alone {
                self.place(&mut batch, open, Epoch::Raise, seen_rebuilds).await
            } else {
                match self.ask_gate(&open).await {
                    Ok(gate::Reserve::Decided {
                        epoch,
                        available,
                        verdicts,
                    }) => {
                        batch.available = Some(available);
                        let (admitted, again) = self.follow_verdicts(&mut batch, open, &verdicts).await;
                        let mut rest = self
                            .place(&mut batch, admitted, Epoch::Exactly(epoch), seen_rebuilds)
                            .await;
                        rest.extend(again);
                        rest
                    }
                    Ok(gate::Reserve::Unprimed) => {
                        if let Err(error) = self.rebuild(RebuildReason::Unprimed, seen_rebuilds, None).await {
                            tracing::warn!(sale_id = %self.sale.id, %error, "a sale could not be loaded into the gate");
                            if matches!(error, loading::Error::Store(_)) {
                                // Neither of them has it: everybody is told so now, and the next ones at once.
                                self.parts.store_breaker.record(Instant::now(), false);
                                batch.turn_away(open);
                                open = Vec::new();
                                break;
                            }
                        }
                        open
                    }
                    Ok(gate::Reserve::Loading) => {
                        tokio::time::sleep(LOADING_PAUSE).await;
                        open
                    }
                    // The breaker has taken note; the next round goes without the gate.
                    Err(error) => {
                        tracing::warn!(sale_id = %self.sale.id, %error, "selling through postgres alone");
                        open
                    }
                }
            };
        }
        batch.turn_away(open);
        (batch.decided, batch.available)
    }

    /// Loads the gate anew, unless it has moved on from the epoch that was found `stale`. Returns whether that came to its end.
    pub async fn reload(&self, stale: i64) -> bool {
        let seen_rebuilds = self.rebuilds.load(Ordering::Acquire);
        let rebuilt = self
            .rebuild(RebuildReason::Apart, seen_rebuilds, Some(stale))
            .await;
        if let Err(error) = &rebuilt {
            tracing::warn!(sale_id = %self.sale.id, %error, "a sale could not be loaded into the gate");
        }
        rebuilt.is_ok()
    }

    /// Loads a sale that has just been listed, so that its first buyers needn't wait for it. Should that fail, they do.
    pub async fn prime(&self) {
        let seen_rebuilds = self.rebuilds.load(Ordering::Acquire);
        if !self.parts.gate_breaker.allows(Instant::now()) {
            return;
        }
        if let Err(error) = self.rebuild(RebuildReason::Listed, seen_rebuilds, None).await {
            tracing::warn!(sale_id = %self.sale.id, %error, "a sale is loaded into the gate at its first purchase");
        }
    }

    fn closing(&self) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        self.closes_at
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// As far as is known: who finds a sale closed that was called off elsewhere is told the time when that was learned.
    fn closed(&self) -> Refusal {
        Refusal::Closed {
            closes_at: self.closing().unwrap_or_else(Timestamp::now),
        }
    }

    async fn ask_gate(&self, entries: &[Entry]) -> Result<gate::Reserve, gate::Error> {
        let requests: Vec<Reservation> = entries
            .iter()
            .map(|entry| Reservation {
                order: entry.order,
                buyer: entry.purchase.buyer.clone(),
                digest: entry.purchase.digest,
                quantity: entry.purchase.quantity,
            })
            .collect();
        let started = Instant::now();
        let result = self.parts.gate.reserve(self.sale.id, &requests).await;
        metrics::gate_seconds(GateOp::Reserve, started.elapsed());
        self.parts.gate_breaker.record(Instant::now(), result.is_ok());
        metrics::gate_degraded(result.is_err());
        if result.is_ok() {
            crash::at(Point::ReserveAdmitted);
        }
        result
    }

    /// Answers what the gate refused, and what it knows from before. Returns what the database must decide, and what needs
    /// a new order id and another round.
    async fn follow_verdicts(
        &self,
        batch: &mut Batch<'_>,
        entries: Vec<Entry>,
        verdicts: &[Verdict],
    ) -> (Vec<Entry>, Vec<Entry>) {
        let terms = &self.sale.terms;
        let mut admitted = Vec::with_capacity(entries.len());
        let mut replays = Vec::new();
        let mut again = Vec::new();
        for (mut entry, verdict) in entries.into_iter().zip(verdicts) {
            let digest = entry.purchase.digest;
            match verdict {
                Verdict::Admitted => admitted.push(entry),
                Verdict::Replay(order) => {
                    entry.order = *order;
                    replays.push(entry);
                }
                Verdict::Released => {
                    entry.order = OrderId::fresh();
                    again.push(entry);
                }
                Verdict::KeyReused => batch.answer(digest, Err(Refusal::KeyReused)),
                Verdict::SoldOut => batch.answer(digest, Err(Refusal::SoldOut)),
                Verdict::LimitExceeded => batch.answer(digest, Err(batch.limit_exceeded())),
                Verdict::NotOpen => batch.answer(
                    digest,
                    Err(Refusal::NotOpen {
                        opens_at: terms.opens_at,
                    }),
                ),
                Verdict::Closed => batch.answer(digest, Err(self.closed())),
            }
        }
        if replays.is_empty() {
            return (admitted, again);
        }
        let digests: Vec<_> = replays.iter().map(|entry| entry.purchase.digest).collect();
        let found = self.parts.store.find_existing(self.sale.id, &digests).await;
        self.parts.store_breaker.record(Instant::now(), found.is_ok());
        match found {
            Ok(existing) => {
                for entry in replays {
                    match existing.get(&entry.purchase.digest) {
                        Some(order) => {
                            let answer = batch.replay_of(&entry, order);
                            batch.answer(entry.purchase.digest, answer);
                        }
                        // Reserved, and the commit never came (or isn't visible yet): it is made now, under the same id. Should
                        // another commit of it be in flight, the insert waits for it.
                        None => admitted.push(entry),
                    }
                }
            }
            Err(error) => {
                tracing::warn!(sale_id = %self.sale.id, %error, "replays can't be looked up");
                for entry in replays {
                    batch.answer(
                        entry.purchase.digest,
                        Err(Refusal::Unavailable {
                            retry_after: RETRY_AFTER,
                        }),
                    );
                }
            }
        }
        (admitted, again)
    }

    /// Has the database decide. Returns what must go round once more.
    async fn place(
        &self,
        batch: &mut Batch<'_>,
        mut entries: Vec<Entry>,
        epoch: Epoch,
        seen_rebuilds: u64,
    ) -> Vec<Entry> {
        if entries.is_empty() {
            return entries;
        }
        let orders = entries
            .iter()
            .map(|entry| NewOrder {
                order: entry.order,
                buyer: entry.purchase.buyer.clone(),
                digest: entry.purchase.digest,
                quantity: entry.purchase.quantity,
                amount_minor: self
                    .sale
                    .terms
                    .unit_price_minor
                    .saturating_mul(entry.purchase.quantity.into()),
                payment_method: entry.purchase.payment_method.clone(),
                request_id: entry.purchase.request_id.clone(),
            })
            .collect();
        let orders: Arc<Vec<NewOrder>> = Arc::new(orders);
        let (outcome, ran_again) = self.commit(&orders, epoch).await;
        for entry in &mut entries {
            entry.tried |= ran_again;
        }
        let (placed, stock, cut) = match outcome {
            Ok(Reserve::Done { placed, stock, cut }) => (placed, stock, cut),
            Ok(Reserve::StaleEpoch) => {
                if let Err(error) = self
                    .rebuild(RebuildReason::Epoch, seen_rebuilds, epoch.admitted_under())
                    .await
                {
                    tracing::warn!(sale_id = %self.sale.id, %error, "a sale could not be loaded into the gate");
                }
                for entry in &mut entries {
                    entry.tried = true;
                }
                return entries;
            }
            Err(error) => {
                let unknown = matches!(error, store::Error::OutcomeUnknown(_));
                tracing::warn!(sale_id = %self.sale.id, orders = orders.len(), %error, "a batch could not be committed");
                for entry in entries {
                    let refusal = if unknown {
                        Refusal::OutcomeUnknown {
                            retry_after: RETRY_AFTER,
                        }
                    } else {
                        Refusal::Unavailable {
                            retry_after: RETRY_AFTER,
                        }
                    };
                    batch.answer(entry.purchase.digest, Err(refusal));
                }
                return Vec::new();
            }
        };

        if let Some(stock) = stock {
            batch.available = Some(stock.available);
        }
        let mut accepted = Vec::with_capacity(entries.len());
        let mut refused = Vec::new();
        for ((entry, order), placed) in entries.iter().zip(orders.iter()).zip(placed) {
            let digest = entry.purchase.digest;
            match placed {
                Placed::New {
                    created_at,
                    fresh,
                    same_request,
                } => {
                    // Made by somebody else under the same id, it is theirs to hand over; made by an earlier run of this batch, it
                    // is found by the scan.
                    if fresh {
                        accepted.push(OpenOrder {
                            order: entry.order,
                            sale: self.sale.id,
                            currency: self.sale.terms.currency,
                        });
                    }
                    let amount = Money {
                        amount_minor: order.amount_minor,
                        currency: self.sale.terms.currency,
                    };
                    let accepted = Accepted {
                        order: entry.order,
                        sale: self.sale.id,
                        buyer: entry.purchase.buyer.clone(),
                        quantity: entry.purchase.quantity,
                        amount,
                        created_at,
                        // A reservation that an earlier request left behind is an order only now, and its first yes is this one.
                        replayed: !fresh && !is_own(entry.tried, same_request),
                    };
                    batch.answer(digest, Ok(accepted));
                }
                Placed::Existing(existing) => refused.push((entry, batch.replay_of(entry, &existing))),
                Placed::SoldOut => refused.push((entry, Err(Refusal::SoldOut))),
                Placed::LimitExceeded => refused.push((entry, Err(batch.limit_exceeded()))),
                Placed::NotOpen => {
                    refused.push((
                        entry,
                        Err(Refusal::NotOpen {
                            opens_at: self.sale.terms.opens_at,
                        }),
                    ));
                }
                Placed::Closed => refused.push((entry, Err(self.closed()))),
                Placed::Bad(_) => {
                    refused.push((
                        entry,
                        Err(Refusal::Unavailable {
                            retry_after: RETRY_AFTER,
                        }),
                    ));
                }
            }
        }
        metrics::transitions(None, OrderStatus::Pending, By::Sale, accepted.len() as u64);
        self.parts.supervisor.hand_over(accepted);

        if epoch.admitted_under().is_some() && !refused.is_empty() {
            let standing = self.give_back(&refused).await;
            for (entry, answer) in &mut refused {
                // Another engine has made this very order meanwhile: that decision stands.
                if let Some(existing) = standing.get(&entry.purchase.digest) {
                    *answer = batch.replay_of(entry, existing);
                }
            }
            if cut && let Err(error) = self.rebuild(RebuildReason::Short, seen_rebuilds, None).await {
                tracing::warn!(sale_id = %self.sale.id, %error, "a sale could not be loaded into the gate");
            }
        }
        for (entry, answer) in refused {
            batch.answer(entry.purchase.digest, answer);
        }
        Vec::new()
    }

    /// Commits a batch, together with those of other sales where it may be, and finds out what became of it when the commit
    /// goes unanswered. Also tells whether it had to be run again for that.
    async fn commit(
        &self,
        orders: &Arc<Vec<NewOrder>>,
        epoch: Epoch,
    ) -> (Result<Reserve, store::Error>, bool) {
        let in_group = match epoch.admitted_under() {
            Some(admitted) => self.commit_in_group(orders, admitted).await.transpose(),
            None => None,
        };
        let mut result = match in_group {
            Some(result) => result,
            None => self.commit_alone(orders, epoch).await,
        };
        let mut ran_again = false;
        for tried in 0..UNKNOWN_TRIES {
            let Err(store::Error::OutcomeUnknown(reason)) = &result else {
                break;
            };
            ran_again = true;
            tracing::warn!(sale_id = %self.sale.id, %reason, "running a batch again to learn its outcome");
            tokio::time::sleep(UNKNOWN_PAUSE * 2_u32.pow(tried)).await;
            result = match self.commit_alone(orders, epoch.again()).await {
                // It stays unknown until somebody answers.
                Err(error) => Err(store::Error::OutcomeUnknown(error.to_string())),
                done => done,
            };
        }
        self.parts.store_breaker.record(
            Instant::now(),
            !matches!(
                result,
                Err(store::Error::Unavailable(_) | store::Error::OutcomeUnknown(_))
            ),
        );
        (result, ran_again)
    }

    /// The usual way. `None` when something is in the way.
    async fn commit_in_group(
        &self,
        orders: &Arc<Vec<NewOrder>>,
        epoch: i64,
    ) -> Result<Option<Reserve>, store::Error> {
        let batch = SaleBatch {
            sale: self.sale.id,
            per_buyer_limit: self.sale.terms.per_buyer_limit,
            epoch,
            orders: orders.clone(),
        };
        let placed = self.parts.committer.commit(batch).await?;
        Ok(placed.map(|(created_at, stock)| Reserve::Done {
            placed: vec![
                Placed::New {
                    created_at,
                    fresh: true,
                    same_request: true,
                };
                orders.len()
            ],
            stock: Some(stock),
            cut: false,
        }))
    }

    /// The careful way: whatever may be in the way is sorted out.
    async fn commit_alone(&self, orders: &[NewOrder], epoch: Epoch) -> Result<Reserve, store::Error> {
        metrics::batch_size(What::Reserve, orders.len());
        let started = Instant::now();
        let limit = self.sale.terms.per_buyer_limit;
        let result = self.parts.store.reserve(self.sale.id, limit, orders, epoch).await;
        metrics::commit_seconds(What::Reserve, started.elapsed());
        result
    }

    /// Gives back what the gate had set aside for orders that did not come into being: first their ids are occupied, so that
    /// they never can. Returns the purchases of which an order exists all the same.
    async fn give_back(
        &self,
        refused: &[(&Entry, Result<Accepted, Refusal>)],
    ) -> HashMap<IdempotencyDigest, Existing> {
        let reservations: Vec<_> = refused
            .iter()
            .map(|(entry, _)| (entry.order, entry.purchase.buyer.clone(), entry.purchase.quantity))
            .collect();
        let occupied = match self.parts.store.occupy(self.sale.id, &reservations).await {
            Ok(occupied) => occupied,
            Err(error) => {
                tracing::warn!(sale_id = %self.sale.id, %error, "left to the reaper: ids could not be occupied");
                return HashMap::new();
            }
        };
        let mut standing = HashMap::new();
        if occupied.len() < refused.len() {
            let digests: Vec<_> = refused
                .iter()
                .filter(|(entry, _)| !occupied.contains(&entry.order))
                .map(|(entry, _)| entry.purchase.digest)
                .collect();
            match self.parts.store.find_existing(self.sale.id, &digests).await {
                Ok(existing) => standing = existing,
                Err(error) => tracing::warn!(sale_id = %self.sale.id, %error, "replays can't be looked up"),
            }
        }
        let releases: Vec<Release> = occupied
            .into_iter()
            .map(|order| Release { order, forget: true })
            .collect();
        if let Err(error) = self.parts.gate.release(self.sale.id, &releases).await {
            tracing::warn!(sale_id = %self.sale.id, %error, "left to the reaper: units could not be given back");
        }
        standing
    }

    /// Loads the gate from the database under a raised epoch, unless somebody in this process has since `seen_rebuilds`, or
    /// another engine has brought the gate beyond the epoch that was found `stale`.
    async fn rebuild(
        &self,
        reason: RebuildReason,
        seen_rebuilds: u64,
        stale: Option<i64>,
    ) -> Result<(), loading::Error> {
        let _one_at_a_time = self.rebuild.lock().await;
        if self.rebuilds.load(Ordering::Acquire) != seen_rebuilds {
            return Ok(());
        }
        if let Some(stale) = stale
            && loading::has_moved_on(&self.parts.gate, self.sale.id, stale).await?
        {
            return Ok(());
        }
        let started = Instant::now();
        let snapshot = loading::read(&self.parts.store, &self.sale, stale.unwrap_or(0)).await?;
        *self.closing() = snapshot.closes_at;
        let result = loading::write(&self.parts.gate, &self.sale, snapshot, reason).await;
        metrics::gate_seconds(GateOp::Rebuild, started.elapsed());
        self.parts.gate_breaker.record(Instant::now(), result.is_ok());
        result?;
        self.rebuilds.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// Whether an order that was there is the one of this very request, which then wasn't told of it before. Its name alone doesn't say so: clients
/// may give a purchase that they ask for again the name of the first request.
fn is_own(tried: bool, same_request: bool) -> bool {
    tried && same_request
}

/// The answers of a batch as they come to be known.
struct Batch<'a> {
    sale: &'a Sale,
    decided: Vec<Decided>,
    available: Option<i64>,
}

impl Batch<'_> {
    /// The database can't be asked, and nothing was done for these.
    fn turn_away(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            self.answer(
                entry.purchase.digest,
                Err(Refusal::Unavailable {
                    retry_after: RETRY_AFTER,
                }),
            );
        }
    }

    fn answer(&mut self, digest: IdempotencyDigest, answer: Result<Accepted, Refusal>) {
        self.decided.push(Decided { digest, answer });
    }

    fn replay_of(&self, entry: &Entry, existing: &Existing) -> Result<Accepted, Refusal> {
        if existing.quantity != entry.purchase.quantity {
            return Err(Refusal::KeyReused);
        }
        Ok(Accepted {
            order: existing.order,
            sale: self.sale.id,
            buyer: entry.purchase.buyer.clone(),
            quantity: existing.quantity,
            amount: Money {
                amount_minor: existing.amount_minor,
                currency: self.sale.terms.currency,
            },
            created_at: existing.created_at,
            replayed: !is_own(entry.tried, existing.request_id == entry.purchase.request_id),
        })
    }

    fn limit_exceeded(&self) -> Refusal {
        Refusal::LimitExceeded {
            per_buyer_limit: self.sale.terms.per_buyer_limit.unwrap_or(i32::MAX),
        }
    }
}
