//! A payment provider for demonstrations and tests: a process of its own, with a book of its own, that takes its time, declines
//! some, and is faulty on request. Strictly idempotent by reference, as a provider has to be.

mod book;
mod faults;
mod webhooks;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::sockets;

pub use book::{Begun, Book, Charge, Refunded, Status, declines, roll};
pub use faults::{Fault, Mode, Operation};
pub use webhooks::Plan;

use webhooks::{Happening, Webhooks};

/// Largest body that is read.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Command line of `fluxbuy mock-provider`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Chooses which references are declined, and how long each takes.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Shortest time that a charge takes.
    #[arg(long, default_value_t = 1000)]
    pub latency_min_ms: u64,
    /// Longest time that a charge takes.
    #[arg(long, default_value_t = 4000)]
    pub latency_max_ms: u64,
    /// Share of charges that are declined.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub decline_percent: u8,
}

/// How it behaves; can be changed while it runs.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Behaviour {
    latency_min_ms: u64,
    latency_max_ms: u64,
    decline_percent: u8,
}

struct Provider {
    seed: u64,
    state: Mutex<State>,
    /// Counts decisions and lifted faults: whoever waits for one looks again when it changes.
    changed: watch::Sender<u64>,
    webhooks: Arc<Webhooks>,
}

struct State {
    book: Book,
    fault: Fault,
    behaviour: Behaviour,
    /// References whose answer is a 500 for good, or was one once.
    stored_errors: HashSet<String>,
    told_error: HashSet<String>,
}

/// Binds, says where on standard output, and serves until the process ends.
///
/// # Errors
/// When it can't listen there.
pub async fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.latency_min_ms <= args.latency_max_ms,
        "--latency-min-ms {} is more than --latency-max-ms {}",
        args.latency_min_ms,
        args.latency_max_ms
    );
    let listener = sockets::listen(args.listen)?;
    println!("mock provider ready at http://{}", listener.local_addr()?);
    serve(&args, listener).await;
    Ok(())
}

/// Serves on `listener` for ever.
pub async fn serve(args: &Args, listener: TcpListener) {
    let provider = Arc::new(Provider {
        seed: args.seed,
        state: Mutex::new(State {
            book: Book::default(),
            fault: Fault::default(),
            behaviour: Behaviour {
                latency_min_ms: args.latency_min_ms,
                latency_max_ms: args.latency_max_ms,
                decline_percent: args.decline_percent,
            },
            stored_errors: HashSet::new(),
            told_error: HashSet::new(),
        }),
        changed: watch::Sender::new(0),
        webhooks: Webhooks::new(),
    });
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(connection(provider.clone(), stream));
            }
            Err(error) => {
                eprintln!("mock provider: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(provider: Arc<Provider>, stream: TcpStream) {
    stream.set_nodelay(true).ok();
    // An answer that must be lost is a service error: hyper then closes the connection without a byte.
    let service = service_fn(move |request| {
        let provider = provider.clone();
        async move {
            provider
                .handle(request)
                .await
                .map_err(|CutOff| std::io::Error::other("cut off"))
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
        .ok();
}

/// The connection is closed without an answer.
struct CutOff;

type Answer = Result<Response<Full<Bytes>>, CutOff>;

#[derive(Deserialize)]
struct ChargeBody {
    reference: String,
    amount_minor: i64,
    currency: String,
    /// `false`: the money is only set aside.
    #[serde(default = "at_once")]
    capture: bool,
}

fn at_once() -> bool {
    true
}

#[derive(Deserialize)]
struct RefundBody {
    reference: String,
    amount_minor: i64,
}

impl Provider {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let method = request.method().clone();
        match (method, segments.as_slice()) {
            (Method::POST, ["charges"]) => match body::<ChargeBody>(request).await {
                Ok(body) => self.charge(body).await,
                Err(answer) => Ok(answer),
            },
            (Method::GET, ["charges", reference]) => self.lookup(reference),
            (Method::POST, ["charges", reference, "capture"]) => self.capture(reference).await,
            (Method::POST, ["charges", reference, "void"]) => self.void(reference),
            (Method::POST, ["charges", charge, "refunds"]) => match body::<RefundBody>(request).await {
                Ok(body) => self.refund(charge, &body).await,
                Err(answer) => Ok(answer),
            },
            (Method::GET, ["book"]) => Ok(json(StatusCode::OK, &self.lock().book.page(""))),
            (Method::GET, ["book", prefix]) => Ok(json(StatusCode::OK, &self.lock().book.page(prefix))),
            (Method::GET, ["webhooks"]) => Ok(json(StatusCode::OK, &self.webhooks.log(""))),
            (Method::GET, ["webhooks", prefix]) => Ok(json(StatusCode::OK, &self.webhooks.log(prefix))),
            (Method::POST, ["webhooks"]) => Ok(match body::<Plan>(request).await {
                Ok(plan) => match self.webhooks.plan(plan) {
                    Ok(()) => json(StatusCode::OK, &json!({"ok": true})),
                    Err(wrong) => error(StatusCode::BAD_REQUEST, &wrong),
                },
                Err(answer) => answer,
            }),
            (Method::POST, ["faults"]) => Ok(match body::<Fault>(request).await {
                Ok(fault) => {
                    self.lock().fault = fault;
                    self.notify();
                    json(StatusCode::OK, &json!({"ok": true}))
                }
                Err(answer) => answer,
            }),
            (Method::POST, ["behaviour"]) => Ok(match body::<Behaviour>(request).await {
                Ok(behaviour) if behaviour.latency_min_ms <= behaviour.latency_max_ms => {
                    self.lock().behaviour = behaviour;
                    json(StatusCode::OK, &json!({"ok": true}))
                }
                Ok(_) => error(
                    StatusCode::BAD_REQUEST,
                    "latency_min_ms is more than latency_max_ms",
                ),
                Err(answer) => answer,
            }),
            _ => Ok(error(StatusCode::NOT_FOUND, "no such thing here")),
        }
    }

    async fn charge(self: Arc<Self>, body: ChargeBody) -> Answer {
        let reference = body.reference.as_str();
        let fault = self.before(Operation::Charge, reference, Some(&body.currency))?;
        if let Fault {
            mode: Mode::RateLimited,
            ..
        } = fault
        {
            return Ok(rate_limited(&fault));
        }
        let begun = self
            .lock()
            .book
            .begin(reference, body.amount_minor, &body.currency, body.capture);
        match begun {
            Begun::Contradiction => {
                return Ok(error(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "the reference belongs to another charge",
                ));
            }
            // A task of its own: a client that hangs up doesn't stop a charge.
            Begun::New => {
                if self.webhooks.are_on() {
                    let created = self.lock().book.charge(reference).map(happening);
                    if let Some(created) = created {
                        self.tell(|| created);
                    }
                }
                let (provider, reference) = (self.clone(), reference.to_owned());
                tokio::spawn(async move { provider.decide_later(&reference).await })
                    .await
                    .ok();
            }
            Begun::Known(_) => {}
        }
        let charge = self.decided(reference).await;
        match fault.mode {
            Mode::AnswerLost => return Err(CutOff),
            Mode::Hang => self.until_lifted(Mode::Hang).await,
            Mode::StoredError => {
                self.lock().stored_errors.insert(reference.to_owned());
            }
            Mode::ErrorAfterCharge if self.lock().told_error.insert(reference.to_owned()) => {
                return Ok(error(StatusCode::INTERNAL_SERVER_ERROR, "something went wrong"));
            }
            _ => {}
        }
        if self.lock().stored_errors.contains(reference) {
            return Ok(error(StatusCode::INTERNAL_SERVER_ERROR, "something went wrong"));
        }
        Ok(json(StatusCode::OK, &for_charger(charge)))
    }

    async fn decide_later(&self, reference: &str) {
        let Behaviour {
            latency_min_ms,
            latency_max_ms,
            decline_percent,
        } = self.lock().behaviour;
        let spread = latency_max_ms - latency_min_ms;
        let latency = latency_min_ms + spread * u64::from(roll(self.seed, "latency", reference)) / 99;
        if latency > 0 {
            tokio::time::sleep(Duration::from_millis(latency)).await;
        }
        let declined = declines(self.seed, reference, decline_percent);
        let decided = self.lock().book.decide(reference, declined);
        // One that was voided meanwhile was told of then.
        let decided = decided.filter(|charge| charge.status != Status::Voided);
        match decided {
            Some(charge) if self.webhooks.comes_early(reference) => {
                self.webhooks.tell(happening(&charge)).await;
                self.notify();
            }
            decided => {
                self.notify();
                if let Some(charge) = decided {
                    self.tell(|| happening(&charge));
                }
            }
        }
    }

    /// Tells of something without waiting for whoever listens.
    fn tell(&self, what: impl FnOnce() -> Happening) {
        if self.webhooks.are_on() {
            let (webhooks, happened) = (self.webhooks.clone(), what());
            tokio::spawn(async move { webhooks.tell(happened).await });
        }
    }

    /// Waits until a charge is no longer pending. (A void ends it for whoever waits.)
    async fn decided(&self, reference: &str) -> Option<Charge> {
        let mut changed = self.changed.subscribe();
        loop {
            let charge = self.lock().book.charge(reference).cloned();
            if charge
                .as_ref()
                .is_none_or(|charge| charge.status != Status::Pending)
            {
                return charge;
            }
            changed.changed().await.ok()?;
        }
    }

    async fn until_lifted(&self, mode: Mode) {
        let mut changed = self.changed.subscribe();
        while self.lock().fault.mode == mode {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn lookup(&self, reference: &str) -> Answer {
        let fault = self.before(Operation::Lookup, reference, None)?;
        if fault.mode == Mode::RateLimited {
            return Ok(rate_limited(&fault));
        }
        Ok(match self.lock().book.charge(reference) {
            Some(charge) => json(StatusCode::OK, charge),
            None => error(StatusCode::NOT_FOUND, "no such charge"),
        })
    }

    fn void(&self, reference: &str) -> Answer {
        let fault = self.before(Operation::Void, reference, None)?;
        if fault.mode == Mode::RateLimited {
            return Ok(rate_limited(&fault));
        }
        let (before, charge) = {
            let book = &mut self.lock().book;
            let before = book.charge(reference).map(|charge| charge.status);
            (before, book.void(reference, fault.mode == Mode::IgnoreVoid))
        };
        self.notify();
        if charge.status == Status::Voided && before.is_some_and(|before| before != Status::Voided) {
            self.tell(|| happening(&charge));
        }
        Ok(json(StatusCode::OK, &charge))
    }

    async fn capture(&self, reference: &str) -> Answer {
        let fault = self.before(Operation::Capture, reference, None)?;
        if fault.mode == Mode::RateLimited {
            return Ok(rate_limited(&fault));
        }
        let (before, charge) = {
            let book = &mut self.lock().book;
            let before = book.charge(reference).map(|charge| charge.status);
            (before, book.capture(reference))
        };
        let Some(charge) = charge else {
            return Ok(error(StatusCode::NOT_FOUND, "no such charge"));
        };
        if before == Some(Status::Authorised) {
            self.tell(|| happening(&charge));
        }
        match fault.mode {
            Mode::AnswerLost => return Err(CutOff),
            Mode::Hang => self.until_lifted(Mode::Hang).await,
            Mode::ErrorAfterCharge | Mode::StoredError => {
                return Ok(error(StatusCode::INTERNAL_SERVER_ERROR, "something went wrong"));
            }
            _ => {}
        }
        Ok(match charge.status {
            Status::Succeeded => json(StatusCode::OK, &charge),
            _ => json(StatusCode::CONFLICT, &charge),
        })
    }

    async fn refund(&self, charge: &str, body: &RefundBody) -> Answer {
        let fault = self.before(Operation::Refund, charge, None)?;
        if fault.mode == Mode::RateLimited {
            return Ok(rate_limited(&fault));
        }
        let (outcome, refunded) = {
            let book = &mut self.lock().book;
            let before = book.charge(charge).map_or(0, |charge| charge.refunded_minor);
            let outcome = book.refund(charge, &body.reference, body.amount_minor);
            let charge = book.charge(charge).cloned();
            (outcome, charge.filter(|charge| charge.refunded_minor > before))
        };
        if let Some(charge) = refunded {
            self.tell(|| Happening {
                kind: "refund.succeeded",
                amount_minor: body.amount_minor,
                refund: Some(body.reference.clone()),
                ..happening(&charge)
            });
        }
        match fault.mode {
            Mode::AnswerLost => return Err(CutOff),
            Mode::Hang => self.until_lifted(Mode::Hang).await,
            _ => {}
        }
        Ok(match outcome {
            Refunded::Done => json(StatusCode::OK, &json!({"status": "refunded"})),
            Refunded::NoCharge => error(StatusCode::NOT_FOUND, "no charge that took money"),
            Refunded::TooMuch => error(
                StatusCode::UNPROCESSABLE_ENTITY,
                "more than is left, or another amount than before",
            ),
        })
    }

    /// The fault that hits a request; one that closes the connection has done so.
    /// Where the request doesn't say its currency, the book does.
    fn before(&self, operation: Operation, reference: &str, currency: Option<&str>) -> Result<Fault, CutOff> {
        let fault = {
            let state = self.lock();
            let booked = state
                .book
                .charge(reference)
                .map(|charge| charge.currency.as_str());
            let mode = state.fault.hits(operation, reference, currency.or(booked));
            Fault {
                mode,
                ..state.fault.clone()
            }
        };
        if fault.mode == Mode::Down {
            Err(CutOff)
        } else {
            Ok(fault)
        }
    }
}

/// What has just happened to a charge.
fn happening(charge: &Charge) -> Happening {
    Happening {
        kind: match charge.status {
            Status::Pending => "charge.created",
            Status::Authorised => "charge.authorised",
            Status::Succeeded => "charge.succeeded",
            Status::Declined => "charge.declined",
            Status::Voided => "charge.voided",
        },
        reference: charge.reference.clone(),
        amount_minor: charge.amount_minor,
        currency: charge.currency.clone(),
        decline_code: charge.decline_code,
        refund: None,
    }
}

/// A charger is told "declined" of a charge that was voided: there is no money for them.
fn for_charger(charge: Option<Charge>) -> serde_json::Value {
    match charge {
        Some(charge) if charge.status == Status::Voided => {
            json!({"reference": charge.reference, "status": "declined", "decline_code": "voided"})
        }
        charge => json!(charge),
    }
}

async fn body<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Response<Full<Bytes>>> {
    let bytes = Limited::new(request.into_body(), MAX_BODY_BYTES)
        .collect()
        .await
        .map_err(|e| error(StatusCode::BAD_REQUEST, &e.to_string()))?
        .to_bytes();
    serde_json::from_slice(&bytes).map_err(|e| error(StatusCode::BAD_REQUEST, &e.to_string()))
}

fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Full<Bytes>> {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn error(status: StatusCode, what: &str) -> Response<Full<Bytes>> {
    json(status, &json!({ "error": what }))
}

fn rate_limited(fault: &Fault) -> Response<Full<Bytes>> {
    let mut response = error(StatusCode::TOO_MANY_REQUESTS, "slower");
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from(fault.retry_after_secs));
    response
}
