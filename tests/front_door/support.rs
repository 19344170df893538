//! A desk without an engine, a door on a free port, and a client that sends exactly the bytes it is told to.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fluxbuy::actors::desk::{
    CancelError, DeskError, Health, ReceiveError, Received, RefundError, Refused, WebhookError,
};
use fluxbuy::domain::{
    Accepted, Buyer, CancellationView, Currency, FailureReason, Money, NewSale, OrderId, OrderStatus,
    OrderView, Purchase, RefundAsk, RefundRefusal, RefundView, Refusal, Sale, SaleId, SaleView, Stock,
};
use fluxbuy::http::{DrainReport, FrontDesk, Settings, serve};
use fluxbuy::signature::Unverified;
use hyper::HeaderMap;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;

pub(crate) const SALE: &str = "019aa3f2-7c00-7000-8000-000000000001";
pub(crate) const ORDER: &str = "019aa3f2-7c00-7000-8000-000000000002";

/// Longer than anything here takes unless something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// What the desk does with a question.
#[derive(Clone)]
pub(crate) enum Plan<T> {
    Answer(T),
    /// Waits until the test lets it go on.
    Wait(Arc<Semaphore>, T),
    Panic,
}

impl<T> Plan<T> {
    async fn carry_out(self) -> T {
        match self {
            Self::Answer(answer) => answer,
            Self::Wait(gate, answer) => {
                gate.acquire().await.unwrap().forget();
                answer
            }
            Self::Panic => panic!("as the test says"),
        }
    }
}

/// What was asked of the desk, and what it answers.
pub(crate) struct Fake {
    pub(crate) purchases: Mutex<Vec<Purchase>>,
    pub(crate) listed: Mutex<Vec<NewSale>>,
    pub(crate) pages: Mutex<Vec<(Option<SaleId>, u16)>>,
    pub(crate) on_purchase: Mutex<Plan<Result<Accepted, Refusal>>>,
    pub(crate) on_sale: Mutex<Plan<Result<SaleView, DeskError>>>,
    pub(crate) on_order: Mutex<Plan<Result<OrderView, DeskError>>>,
    pub(crate) on_cancel: Mutex<Plan<Result<OrderView, CancelError>>>,
    pub(crate) health: Mutex<Health>,
    /// Purchases that have begun, and those that came to their end.
    pub(crate) begun: watch::Sender<usize>,
    pub(crate) ended: watch::Sender<usize>,
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            purchases: Mutex::default(),
            listed: Mutex::default(),
            pages: Mutex::default(),
            on_purchase: Mutex::new(Plan::Answer(Ok(accepted()))),
            on_sale: Mutex::new(Plan::Answer(Ok(sale_view()))),
            on_order: Mutex::new(Plan::Answer(Ok(order_view(OrderStatus::Pending)))),
            on_cancel: Mutex::new(Plan::Answer(Ok(cancelled()))),
            health: Mutex::new(Health {
                postgres_up: true,
                redis_up: true,
            }),
            begun: watch::Sender::new(0),
            ended: watch::Sender::new(0),
        })
    }

    pub(crate) fn plan_purchase(&self, plan: Plan<Result<Accepted, Refusal>>) {
        *self.on_purchase.lock().unwrap() = plan;
    }
}

/// Waits until `counter` has reached `count`.
pub(crate) async fn reached(counter: &watch::Sender<usize>, count: usize) {
    let mut seen = counter.subscribe();
    let waiting = seen.wait_for(|now| *now >= count);
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("it never came to that")
        .unwrap();
}

/// The handle that the door gets.
pub(crate) struct FakeDesk(pub(crate) Arc<Fake>);

impl FrontDesk for FakeDesk {
    async fn purchase(&self, purchase: Purchase) -> Result<Accepted, Refusal> {
        self.0.purchases.lock().unwrap().push(purchase);
        let plan = self.0.on_purchase.lock().unwrap().clone();
        self.0.begun.send_modify(|n| *n += 1);
        let answer = plan.carry_out().await;
        self.0.ended.send_modify(|n| *n += 1);
        answer
    }

    async fn list_sale(&self, terms: NewSale) -> Result<SaleView, DeskError> {
        self.0.listed.lock().unwrap().push(terms.clone());
        let plan = self.0.on_sale.lock().unwrap().clone();
        plan.carry_out().await
    }

    async fn sale(&self, _: SaleId) -> Result<SaleView, DeskError> {
        let plan = self.0.on_sale.lock().unwrap().clone();
        plan.carry_out().await
    }

    async fn sales(&self, after: Option<SaleId>, limit: u16) -> Result<Vec<SaleView>, DeskError> {
        self.0.pages.lock().unwrap().push((after, limit));
        Ok(vec![sale_view(); 3.min(limit.into())])
    }

    async fn order(&self, _: OrderId, _: &Buyer) -> Result<OrderView, DeskError> {
        let plan = self.0.on_order.lock().unwrap().clone();
        plan.carry_out().await
    }

    async fn cancel(&self, _: OrderId, _: &Buyer) -> Result<OrderView, CancelError> {
        let plan = self.0.on_cancel.lock().unwrap().clone();
        plan.carry_out().await
    }

    async fn cancel_sale(&self, id: SaleId) -> Result<CancellationView, DeskError> {
        self.cancellation(id).await
    }

    async fn cancellation(&self, id: SaleId) -> Result<CancellationView, DeskError> {
        if id.to_string() != SALE {
            return Err(DeskError::NotFound);
        }
        Ok(CancellationView {
            sale: id,
            cancelled_at: Some(at("2026-12-01T09:00:00Z")),
            done_at: None,
            open: 1,
            to_refund: 2,
            released: 3,
            refunded: 4,
        })
    }

    async fn refund(&self, order: OrderId, ask: RefundAsk) -> Result<RefundView, RefundError> {
        let view = RefundView {
            order,
            number: 1,
            amount: Money {
                amount_minor: ask.amount_minor.unwrap_or(9998),
                currency: Currency::parse("EUR").unwrap(),
            },
            return_units: ask.return_units,
            done: false,
            replayed: false,
        };
        // The amount says what is to happen.
        match ask.amount_minor {
            Some(1) => Ok(RefundView {
                done: true,
                replayed: true,
                ..view
            }),
            Some(2) => Err(RefundRefusal::Exceeds { left_minor: 40 }.into()),
            Some(3) => Err(RefundRefusal::KeyReused.into()),
            Some(4) => Err(RefundRefusal::ReturnNeedsAll.into()),
            Some(5) => Err(RefundRefusal::NotFound.into()),
            Some(6) => Err(RefundRefusal::NotRefundable {
                status: OrderStatus::Failed,
            }
            .into()),
            Some(7) => Err(DeskError::OutcomeUnknown.into()),
            _ => Ok(view),
        }
    }

    async fn webhook(
        &self,
        provider: &str,
        _: &HeaderMap,
        body: Bytes,
        _: String,
    ) -> Result<Received, WebhookError> {
        match (provider, body.as_ref()) {
            ("mock", b"first") => Ok(Received::First),
            ("mock", b"repeat") => Ok(Received::Repeat),
            ("mock", b"old") => Err(Refused::Unverified(Unverified::TooOld).into()),
            ("mock", b"rubbish") => Err(Refused::Unreadable.into()),
            ("mock", b"too many") => Err(ReceiveError::Overloaded.into()),
            ("mock", b"away") => Err(ReceiveError::Unavailable.into()),
            _ => Err(WebhookError::UnknownProvider),
        }
    }

    fn health(&self) -> Health {
        *self.0.health.lock().unwrap()
    }
}

pub(crate) fn accepted() -> Accepted {
    Accepted {
        order: ORDER.parse().unwrap(),
        sale: SALE.parse().unwrap(),
        buyer: Buyer::parse("ann").unwrap(),
        quantity: 2,
        amount: Money {
            amount_minor: 9998,
            currency: Currency::parse("EUR").unwrap(),
        },
        created_at: at("2026-12-01T09:00:00.25Z"),
        replayed: false,
    }
}

pub(crate) fn sale_view() -> SaleView {
    SaleView {
        sale: Sale {
            id: SALE.parse().unwrap(),
            terms: NewSale {
                name: "Boots".to_owned(),
                quantity: 900,
                unit_price_minor: 4999,
                currency: Currency::parse("EUR").unwrap(),
                per_buyer_limit: None,
                max_per_order: 1000,
                opens_at: at("2026-12-01T09:00:00Z"),
                closes_at: None,
            },
        },
        stock: Stock {
            quantity: 900,
            available: 890,
            held: 6,
            sold: 4,
        },
        cancelled_at: None,
        server_time: at("2026-12-01T09:00:01Z"),
    }
}

pub(crate) fn order_view(status: OrderStatus) -> OrderView {
    let accepted = accepted();
    OrderView {
        id: accepted.order,
        sale: accepted.sale,
        buyer: accepted.buyer,
        quantity: accepted.quantity,
        amount: accepted.amount,
        status,
        failure_reason: None,
        attempt: 0,
        refunded_minor: 0,
        refund_due_minor: 0,
        late_refund: None,
        created_at: accepted.created_at,
        updated_at: accepted.created_at,
    }
}

pub(crate) fn cancelled() -> OrderView {
    OrderView {
        failure_reason: Some(FailureReason::Cancelled),
        ..order_view(OrderStatus::Failed)
    }
}

/// Bounds that no test meets by accident.
pub(crate) fn roomy() -> Settings {
    Settings {
        max_connections: 1000,
        max_body_bytes: 16 * 1024,
        header_read_timeout: PATIENCE,
        body_read_timeout: PATIENCE,
        request_timeout: PATIENCE,
        connection_idle_timeout: PATIENCE,
        drain_timeout: PATIENCE,
    }
}

/// A door that is open until it is told to close.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) fake: Arc<Fake>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<DrainReport>,
}

impl Door {
    pub(crate) async fn open(settings: Settings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let fake = Fake::new();
        let desk = FakeDesk(fake.clone());
        let (stop, stopped) = oneshot::channel();
        let render = || "fluxbuy_up 1\n".to_owned();
        let shutdown = async {
            stopped.await.ok();
        };
        let serving = tokio::spawn(serve(listener, desk, settings, render, shutdown));
        Self {
            address,
            fake,
            stop: Some(stop),
            serving,
        }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client {
            stream: TcpStream::connect(self.address).await.unwrap(),
            buffer: Vec::new(),
        }
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, request: &str) -> Answer {
        self.connect().await.ask(request).await
    }

    pub(crate) fn begin_to_close(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    pub(crate) async fn closed(self) -> DrainReport {
        tokio::time::timeout(PATIENCE, self.serving)
            .await
            .expect("the door never closed")
            .unwrap()
    }
}

/// An answer, taken apart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The name of the problem; empty when it is none.
    pub(crate) fn problem(&self) -> String {
        if self.header("content-type") != Some("application/problem+json") {
            return String::new();
        }
        let json = self.json();
        assert_eq!(json["status"], self.status, "{self:?}");
        json["type"]
            .as_str()
            .unwrap()
            .strip_prefix("urn:fluxbuy:problem:")
            .unwrap()
            .to_owned()
    }
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    pub(crate) async fn ask(&mut self, request: &str) -> Answer {
        self.send(request).await;
        self.answer(request.starts_with("HEAD"))
            .await
            .expect("closed without an answer")
    }

    pub(crate) async fn next(&mut self) -> Option<Answer> {
        self.answer(false).await
    }

    /// The next answer; `None` when the connection is closed instead.
    async fn answer(&mut self, without_body: bool) -> Option<Answer> {
        let head_end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more().await {
                assert!(
                    self.buffer.is_empty(),
                    "closed in the middle of {:?}",
                    self.buffer
                );
                return None;
            }
        };
        let head: Vec<u8> = self.buffer.drain(..head_end).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut answer = Answer {
            status,
            headers,
            body: String::new(),
        };
        let length: usize = answer.header("content-length").map_or(0, |n| n.parse().unwrap());
        if !without_body {
            while self.buffer.len() < length {
                assert!(self.more().await, "closed in the middle of a body");
            }
            answer.body = String::from_utf8(self.buffer.drain(..length).collect()).unwrap();
        }
        Some(answer)
    }

    /// Whether the other side closes without a word.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.more().await
    }

    async fn more(&mut self) -> bool {
        let read = self.stream.read_buf(&mut self.buffer);
        let read = tokio::time::timeout(PATIENCE, read)
            .await
            .expect("neither an answer nor an end");
        // A reset is an end as well.
        read.unwrap_or(0) > 0
    }
}

/// A purchase, as a good client sends it.
pub(crate) fn purchase() -> String {
    purchase_with("X-Buyer-Id: ann\r\nIdempotency-Key: k1\r\n", r#"{"quantity":2}"#)
}

pub(crate) fn purchase_with(headers: &str, body: &str) -> String {
    post(&format!("/v1/sales/{SALE}/orders"), headers, body)
}

pub(crate) fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop\r\nX-Buyer-Id: ann\r\n\r\n")
}

/// A buyer whose purchase is being worked on, until a permit is given.
pub async fn purchase_under_way(door: &Door) -> (Client, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    door.fake.plan_purchase(Plan::Wait(gate.clone(), Ok(accepted())));
    let mut buyer = door.connect().await;
    buyer.send(purchase()).await;
    reached(&door.fake.begun, 1).await;
    (buyer, gate)
}
