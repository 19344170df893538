//! Stripe for a test: localstripe behind a front that takes idempotency keys as Stripe does, and fails when it is told to.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader};
use tokio::process::{Child, Command};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use super::http::Client;
use super::{Bed, PATIENCE, Setup};

pub const SECRET_KEY: &str = "sk_test_12345";
pub const WEBHOOK_SECRET: &str = "whsec_of_a_test";
/// A card that can be charged, and one that can't.
pub const VISA: &str = "pm_card_visa";
pub const DECLINED: &str = "pm_card_chargeCustomerFail";

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is done, and the connection is cut without an answer.
    AnswerLost,
    /// It is done, answered 500, and that is what its key stands for from then on.
    StoredError,
    /// Nothing is done: the connection is cut.
    Down,
}

pub struct Stripe {
    /// Of the front.
    pub url: String,
    /// Of localstripe itself.
    direct: String,
    client: Client,
    state: Arc<Mutex<State>>,
    /// Whom the engine has to believe, where the front speaks TLS.
    certificate: Option<NamedTempFile>,
    /// Ends with its standard input.
    _server: Child,
}

struct State {
    /// What a key stands for.
    answers: HashMap<String, (StatusCode, Bytes)>,
    keys_count: bool,
    /// Requests that have arrived.
    arrived: i64,
    faults: HashMap<&'static str, Fault>,
    /// What was done, by what it was.
    done: HashMap<&'static str, u32>,
}

/// A certificate for `localhost` of our own making, and the server's side of it.
fn certificate() -> (NamedTempFile, TlsAcceptor) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(made.cert.pem().as_bytes()).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    (file, TlsAcceptor::from(Arc::new(config)))
}

impl Stripe {
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Over TLS, as Stripe itself is reached.
    pub async fn start_with_tls() -> Self {
        Self::start_with(Some(certificate())).await
    }

    async fn start_with(tls: Option<(NamedTempFile, TlsAcceptor)>) -> Self {
        let python = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../localstripe/bin/python");
        assert!(python.exists(), "localstripe isn't installed: make deps");
        let mut server = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/run-localstripe.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let port = tokio::time::timeout(PATIENCE, lines.next_line())
            .await
            .expect("localstripe says where it is")
            .unwrap()
            .expect("localstripe has started");
        let direct = format!("http://127.0.0.1:{port}");
        let state = Arc::new(Mutex::new(State {
            answers: HashMap::new(),
            keys_count: true,
            arrived: 0,
            faults: HashMap::new(),
            done: HashMap::new(),
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let (url, certificate, acceptor) = match tls {
            Some((certificate, acceptor)) => (
                format!("https://localhost:{}", here.port()),
                Some(certificate),
                Some(acceptor),
            ),
            None => (format!("http://{here}"), None, None),
        };
        let front = Front {
            direct: direct.clone(),
            state: state.clone(),
            client: Client::default(),
        };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (front, acceptor) = (front.clone(), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => front.serve(stream).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                front.serve(stream).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            url,
            direct,
            client: Client::default(),
            state,
            certificate,
            _server: server,
        }
    }

    /// An engine that charges here, and hears of it.
    pub async fn bed(&self, setup: Setup) -> Bed {
        let bed = setup
            .set("provider.kind", "stripe")
            .set("provider.url", &self.url)
            .set("provider.secret_key", SECRET_KEY)
            .set("webhooks.scheme", "stripe")
            .set("webhooks.secrets", WEBHOOK_SECRET)
            .environment(
                "SSL_CERT_FILE",
                self.certificate
                    .as_ref()
                    .map_or("/nowhere", |file| file.path().to_str().unwrap()),
            )
            .start()
            .await;
        let hook = json!({"url": format!("{}/v1/webhooks/stripe", bed.url()), "secret": WEBHOOK_SECRET});
        let reply = self
            .client
            .post(&format!("{}/_config/webhooks/bed", self.direct), &[], &hook)
            .await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        bed
    }

    /// Keys are ignored from now on, as localstripe does, or as when Stripe has forgotten them.
    pub fn ignore_keys(&self) {
        self.state.lock().unwrap().keys_count = false;
    }

    /// How many requests have arrived.
    pub fn arrived(&self) -> i64 {
        self.state.lock().unwrap().arrived
    }

    /// From now on this goes wrong with that: `open`, `confirm`, `capture`, `cancel`, `refund`, `look`.
    pub fn fault(&self, what: &'static str, fault: Fault) {
        self.state.lock().unwrap().faults.insert(what, fault);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// How often this was done.
    pub fn done(&self, what: &'static str) -> u32 {
        self.state
            .lock()
            .unwrap()
            .done
            .get(what)
            .copied()
            .unwrap_or_default()
    }

    async fn list(&self, what: &str) -> Vec<Value> {
        let url = format!("{}/v1/{what}?limit=1000", self.direct);
        let authorization = format!("Bearer {SECRET_KEY}");
        let reply = self.client.get(&url, &[("authorization", &authorization)]).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["data"].as_array().unwrap().clone()
    }

    /// All intents of an order.
    pub async fn intents(&self, order: &str) -> Vec<Value> {
        let name = format!("{order}:1");
        let mut intents = self.list("payment_intents").await;
        intents.retain(|intent| intent["metadata"]["fluxbuy_charge"] == name);
        intents
    }

    /// The states of an order's intents, in order.
    pub async fn states(&self, order: &str) -> Vec<String> {
        let mut states: Vec<String> = self
            .intents(order)
            .await
            .iter()
            .map(|intent| intent["status"].as_str().unwrap().to_owned())
            .collect();
        states.sort();
        states
    }

    /// Amounts of all refunds.
    pub async fn refunds(&self) -> Vec<i64> {
        self.list("refunds")
            .await
            .iter()
            .map(|refund| refund["amount"].as_i64().unwrap())
            .collect()
    }
}

#[derive(Clone)]
struct Front {
    direct: String,
    state: Arc<Mutex<State>>,
    client: Client,
}

fn what(method: &Method, path: &str) -> &'static str {
    let last = path.rsplit('/').next().unwrap_or_default();
    match (method, last) {
        (&Method::POST, "payment_intents") => "open",
        (&Method::POST, "confirm") => "confirm",
        (&Method::POST, "capture") => "capture",
        (&Method::POST, "cancel") => "cancel",
        (&Method::POST, "refunds") => "refund",
        _ => "look",
    }
}

impl Front {
    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| self.pass(request));
        http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await
            .ok();
    }

    async fn pass(&self, request: Request<Incoming>) -> std::io::Result<Response<Full<Bytes>>> {
        let cut = || Err(std::io::Error::other("cut off"));
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        let what = what(&parts.method, parts.uri.path());
        let header = |name: &str| {
            parts
                .headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let key = header("idempotency-key");
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.arrived += 1;
            let known = key.as_ref().filter(|_| state.keys_count);
            if let Some((status, body)) = known.and_then(|key| state.answers.get(key)) {
                return Ok(response(*status, body.clone()));
            }
            state.faults.get(what).copied()
        };
        if fault == Some(Fault::Down) {
            return cut();
        }
        let url = format!("{}{}", self.direct, parts.uri);
        let authorization = header("authorization").unwrap_or_default();
        let content_type = header("content-type").unwrap_or_default();
        let headers = [
            ("authorization", &*authorization),
            ("content-type", &*content_type),
        ];
        let reply = self
            .client
            .send(parts.method, &url, &headers, body)
            .await
            .map_err(std::io::Error::other)?;
        let mut answer = (StatusCode::from_u16(reply.status).unwrap(), reply.body);
        let mut state = self.state.lock().unwrap();
        if answer.0 == StatusCode::OK {
            *state.done.entry(what).or_default() += 1;
        }
        if fault == Some(Fault::StoredError) {
            answer = (
                StatusCode::INTERNAL_SERVER_ERROR,
                r#"{"error":{"type":"api_error"}}"#.into(),
            );
        }
        if let Some(key) = key {
            state.answers.insert(key, answer.clone());
        }
        if fault == Some(Fault::AnswerLost) {
            return cut();
        }
        Ok(response(answer.0, answer.1))
    }
}

fn response(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
}
