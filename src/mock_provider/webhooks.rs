//! The provider talks back: signed webhooks about what happens in its book, as unruly as it is told to be, and a log of what was
//! sent and what the answer was.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::book::roll;
use crate::signature::{self, Key, Scheme};

/// Requests under way at a time.
const MAX_UNDER_WAY: usize = 256;
/// How long one may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before what was refused is sent again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// What a forger signs with.
const FORGERS_SECRET: &[u8] = b"a guess";

/// Where webhooks go, and how unruly they are. Percentages choose events by their name, the same ones in every run with a seed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plan {
    /// Where they go: `http://...`. Empty: nowhere.
    pub url: String,
    /// What they are signed with.
    pub secret: String,
    /// How: "standard" or "stripe".
    pub scheme: SchemeName,
    /// Fewest and most copies of each event.
    pub copies_min: u64,
    /// See `copies_min`.
    pub copies_max: u64,
    /// Shortest and longest time between a copy and the next; 0 sends them all at once.
    pub gap_min_ms: u64,
    /// See `gap_min_ms`.
    pub gap_max_ms: u64,
    /// Share of events whose copies all go at once, whatever the gap.
    pub at_once_percent: u8,
    /// Events come late by up to so much, each by its own time: out of order.
    pub delay_max_ms: u64,
    /// Share of charges whose events are delivered before the charge is answered.
    pub early_percent: u8,
    /// Share of events that are never sent.
    pub lost_percent: u8,
    /// Share of events beside which a forged one is sent that says the opposite.
    pub forged_percent: u8,
    /// A second event about each charge that succeeds.
    pub echo: bool,
    /// How often a delivery that isn't answered with 2xx is sent again.
    pub retries: u32,
    /// Chooses.
    pub seed: u64,
}

/// A scheme, as it is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchemeName {
    /// Standard Webhooks.
    Standard,
    /// Stripe's own.
    Stripe,
}

impl Default for Plan {
    /// Nowhere; and once it goes somewhere, each event once, when it happens.
    fn default() -> Self {
        Self {
            url: String::new(),
            secret: String::new(),
            scheme: SchemeName::Standard,
            copies_min: 1,
            copies_max: 1,
            gap_min_ms: 0,
            gap_max_ms: 0,
            at_once_percent: 0,
            delay_max_ms: 0,
            early_percent: 0,
            lost_percent: 0,
            forged_percent: 0,
            echo: false,
            retries: 20,
            seed: 0,
        }
    }
}

/// What was sent of an event, and what the answers were.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sent {
    /// Its name.
    pub id: String,
    /// What it is.
    pub kind: String,
    /// The charge that it is about.
    pub reference: String,
    /// It was decided never to send it.
    pub lost: bool,
    /// Each request: when, in ms since 1970, and the status of its answer; 0 for none.
    pub requests: Vec<(u64, u16)>,
    /// The same of forgeries in its name.
    pub forged: Vec<(u64, u16)>,
}

/// Sends webhooks.
pub struct Webhooks {
    client: Client<HttpConnector, Full<Bytes>>,
    under_way: Semaphore,
    /// There is somebody to tell.
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    plan: Plan,
    key: Option<(Scheme, Key)>,
    events: Vec<Sent>,
    /// Events so far of each charge, for their names.
    told: HashMap<String, u32>,
    /// Deliveries that are still to come to their end.
    unfinished: u64,
}

/// Something that happened to a charge.
#[derive(Debug, Clone)]
pub struct Happening {
    /// What.
    pub kind: &'static str,
    /// Which charge.
    pub reference: String,
    /// Of how much.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: String,
    /// Why it was declined.
    pub decline_code: Option<&'static str>,
    /// Our customer's name for the refund, where it is one.
    pub refund: Option<String>,
}

impl Webhooks {
    pub(super) fn new() -> Arc<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Arc::new(Self {
            client: Client::builder(TokioExecutor::new())
                .retry_canceled_requests(false)
                .build(connector),
            under_way: Semaphore::new(MAX_UNDER_WAY),
            on: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes by this plan from now on.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn plan(&self, plan: Plan) -> Result<(), String> {
        let key = if plan.url.is_empty() {
            None
        } else {
            plan.url.parse::<Uri>().map_err(|e| format!("url: {e}"))?;
            let scheme = match plan.scheme {
                SchemeName::Standard => Scheme::Standard,
                SchemeName::Stripe => Scheme::Stripe,
            };
            Some((
                scheme,
                Key::parse(scheme, &plan.secret).map_err(|e| format!("secret: {e}"))?,
            ))
        };
        if plan.copies_min == 0 || plan.copies_min > plan.copies_max || plan.gap_min_ms > plan.gap_max_ms {
            return Err("copies_min must be 1 to copies_max, and gap_min_ms at most gap_max_ms".to_owned());
        }
        let mut state = self.lock();
        self.on.store(key.is_some(), Ordering::Relaxed);
        state.plan = plan;
        state.key = key;
        Ok(())
    }

    /// Whether there is anybody to tell.
    pub(super) fn are_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What was sent so far, about charges whose reference begins with `prefix`.
    pub(super) fn log(&self, prefix: &str) -> Value {
        let state = self.lock();
        let events: Vec<&Sent> = state
            .events
            .iter()
            .filter(|sent| sent.reference.starts_with(prefix))
            .collect();
        json!({"events": events, "unfinished": state.unfinished})
    }

    /// Whether what happens to this charge is told before the charge is answered.
    pub(super) fn comes_early(&self, reference: &str) -> bool {
        if !self.are_on() {
            return false;
        }
        let state = self.lock();
        roll(state.plan.seed, "early", reference) < state.plan.early_percent
    }

    /// Tells of something. Returns when the first copy has been answered, or will never be.
    pub(super) async fn tell(self: &Arc<Self>, happened: Happening) {
        let deliveries = {
            let mut state = self.lock();
            let Some((scheme, key)) = state.key.clone() else {
                return;
            };
            let plan = state.plan.clone();
            let echoes = u32::from(plan.echo && happened.kind == "charge.succeeded");
            (0..=echoes)
                .map(|echo| {
                    let nth = state.told.entry(happened.reference.clone()).or_default();
                    *nth += 1;
                    let id = format!("evt_{}_{nth}", happened.reference.replace([':', '-'], ""));
                    let kind = if echo == 0 {
                        happened.kind
                    } else {
                        "charge.updated"
                    };
                    let lost = roll(plan.seed, "lost", &id) < plan.lost_percent;
                    state.events.push(Sent {
                        id: id.clone(),
                        kind: kind.to_owned(),
                        reference: happened.reference.clone(),
                        lost,
                        ..Sent::default()
                    });
                    state.unfinished += u64::from(!lost);
                    Delivery {
                        place: state.events.len() - 1,
                        body: happened.body(&id, kind),
                        id,
                        lost,
                        plan: plan.clone(),
                        signer: (scheme, key.clone()),
                    }
                })
                .collect::<Vec<_>>()
        };
        join_all(
            deliveries
                .into_iter()
                .filter(|delivery| !delivery.lost)
                .map(|delivery| self.deliver(delivery, &happened)),
        )
        .await;
    }

    async fn deliver(self: &Arc<Self>, delivery: Delivery, happened: &Happening) {
        let Delivery { id, plan, .. } = &delivery;
        let between = |min: u64, max: u64, purpose: &str| {
            min + (max - min) * u64::from(roll(plan.seed, purpose, id)) / 99
        };
        if roll(plan.seed, "forged", id) < plan.forged_percent {
            let forger = Key::parse(Scheme::Stripe, &String::from_utf8_lossy(FORGERS_SECRET)).ok();
            if let Some(forger) = forger {
                let says = if happened.kind == "charge.succeeded" {
                    "charge.declined"
                } else {
                    "charge.succeeded"
                };
                let forgery = Delivery {
                    body: happened.body(id, says),
                    signer: (delivery.signer.0, forger),
                    ..delivery.clone()
                };
                let status = self.post(&forgery).await;
                self.lock().events[delivery.place].forged.push((now_ms(), status));
            }
        }
        let delay = between(0, plan.delay_max_ms, "delay");
        let copies = between(plan.copies_min, plan.copies_max, "copies");
        let gap = if roll(plan.seed, "at once", id) < plan.at_once_percent {
            0
        } else {
            between(plan.gap_min_ms, plan.gap_max_ms, "gap")
        };
        let sends: Vec<_> = (0..copies)
            .map(|copy| {
                let (webhooks, delivery) = (self.clone(), delivery.clone());
                let wait = Duration::from_millis(delay + copy * gap);
                tokio::spawn(async move {
                    tokio::time::sleep(wait).await;
                    webhooks.until_taken(&delivery).await;
                })
            })
            .collect();
        let webhooks = self.clone();
        let mut sends = sends.into_iter();
        if let Some(first) = sends.next() {
            first.await.ok();
        }
        tokio::spawn(async move {
            join_all(sends).await;
            webhooks.lock().unfinished -= 1;
        });
    }

    /// Sends until it is taken, with pauses that double.
    async fn until_taken(&self, delivery: &Delivery) {
        let mut pause = FIRST_PAUSE;
        for _ in 0..=delivery.plan.retries {
            let at = now_ms();
            let status = self.post(delivery).await;
            self.lock().events[delivery.place].requests.push((at, status));
            if (200..300).contains(&status) {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// One request; 0 for no answer.
    async fn post(&self, delivery: &Delivery) -> u16 {
        let _place = self.under_way.acquire().await;
        let (scheme, key) = &delivery.signer;
        let at = (now_ms() / 1000) as i64;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&delivery.plan.url)
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in signature::sign(*scheme, key, &delivery.id, at, delivery.body.as_bytes()) {
            request = request.header(name, value);
        }
        let Ok(request) = request.body(Full::new(Bytes::from(delivery.body.clone()))) else {
            return 0;
        };
        let exchange = async {
            let response = self.client.request(request).await.ok()?;
            let status = response.status().as_u16();
            response.into_body().collect().await.ok()?;
            Some(status)
        };
        tokio::time::timeout(TIMEOUT, exchange)
            .await
            .ok()
            .flatten()
            .unwrap_or(0)
    }
}

/// An event on its way.
#[derive(Clone)]
struct Delivery {
    /// Its place in the log.
    place: usize,
    id: String,
    body: String,
    lost: bool,
    plan: Plan,
    signer: (Scheme, Key),
}

impl Happening {
    fn body(&self, id: &str, kind: &str) -> String {
        json!({
            "id": id,
            "type": kind,
            "reference": self.reference,
            "amount_minor": self.amount_minor,
            "currency": self.currency,
            "decline_code": self.decline_code,
            "refund": self.refund,
        })
        .to_string()
    }
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
