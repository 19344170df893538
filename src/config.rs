//! Settings: what there is, where a value comes from, and what is allowed.
//!
//! `config.default.toml` is the documentation and the first layer at once; the structs here mirror it field by field.
//! A setting that isn't in it doesn't exist: unknown keys refuse the start.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{ConfigError, Environment, File, FileFormat};
use serde::{Deserialize, Deserializer, de};

/// The default settings with their explanations, as `fluxbuy config` prints them.
pub const DEFAULTS: &str = include_str!("../config.default.toml");

/// What comes before a setting's name in the environment.
const ENV_PREFIX: &str = "FLUXBUY";

/// What stops the start. Its text names each setting and what it allows, never the value of a URL.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file named by `--config` can't be read.
    #[error("can't read {}: {source}", path.display())]
    Unreadable {
        /// That file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file isn't TOML.
    #[error("{path} isn't valid TOML: {detail}")]
    Syntax {
        /// That file.
        path: String,
        /// Where and why.
        detail: String,
    },
    /// Settings that don't exist, are missing, or have a value that isn't allowed; all of them at once.
    #[error("{}", list(.0))]
    Refused(Vec<Problem>),
}

/// One setting that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its name, `section.key`.
    pub setting: String,
    /// What is wrong.
    pub wrong: String,
    /// What it allows; for a setting that doesn't exist, which ones there are.
    pub allowed: String,
}

fn list(problems: &[Problem]) -> String {
    let lines = problems.iter().map(|p| {
        let allowed = if p.allowed.is_empty() {
            String::new()
        } else {
            format!(" (allowed: {})", p.allowed)
        };
        format!("setting {}: {}{allowed}", p.setting, p.wrong)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Which settings must be there: each command asks for what it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The engine: Postgres, Redis and the provider.
    Serve,
    /// Migrations: Postgres as the owner.
    Migrate,
    /// Commands that only look into Postgres.
    Database,
    /// Commands that hold Postgres against the provider.
    Ledger,
    /// Commands that hold Postgres, Redis and the provider against each other.
    Reconcile,
}

/// All settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The front door.
    pub http: Http,
    /// The system of record.
    pub postgres: Postgres,
    /// The gate.
    pub redis: Redis,
    /// Taking orders.
    pub sale: Sale,
    /// Charging them.
    pub payment: Payment,
    /// Settling what is stuck.
    pub sweeper: Sweeper,
    /// Holding the three against each other.
    pub reconcile: Reconcile,
    /// Who charges.
    pub provider: Provider,
    /// What the provider tells by itself.
    pub webhooks: Webhooks,
    /// What is written to stderr.
    pub log: Log,
    /// Switches that break the engine on purpose.
    #[cfg(feature = "test-switches")]
    #[serde(default)]
    pub test: TestSwitches,
}

/// Section `[http]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Where the engine listens.
    pub listen: SocketAddr,
    /// Connections open at a time.
    #[serde(deserialize_with = "whole")]
    pub max_connections: usize,
    /// Largest request body.
    #[serde(deserialize_with = "whole")]
    pub max_body_bytes: usize,
    /// See [`Http::header_read_timeout`].
    #[serde(deserialize_with = "whole")]
    pub header_read_timeout_ms: u64,
    /// See [`Http::body_read_timeout`].
    #[serde(deserialize_with = "whole")]
    pub body_read_timeout_ms: u64,
    /// See [`Http::request_timeout`].
    #[serde(deserialize_with = "whole")]
    pub request_timeout_ms: u64,
    /// See [`Http::connection_idle_timeout`].
    #[serde(deserialize_with = "whole")]
    pub connection_idle_timeout_ms: u64,
    /// See [`Http::drain_timeout`].
    #[serde(deserialize_with = "whole")]
    pub drain_timeout_ms: u64,
}

/// Section `[postgres]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    /// The database as the engine's role.
    pub url: ServerUrl,
    /// The database as the schema's owner; empty means `url`.
    pub owner_url: ServerUrl,
    /// Connections for taking orders.
    #[serde(deserialize_with = "whole")]
    pub reserve_connections: u32,
    /// Connections for claims, settlements and sweeps.
    #[serde(deserialize_with = "whole")]
    pub settle_connections: u32,
    /// Connections for reads.
    #[serde(deserialize_with = "whole")]
    pub read_connections: u32,
    /// See [`Postgres::acquire_timeout`].
    #[serde(deserialize_with = "whole")]
    pub acquire_timeout_ms: u64,
    /// The URL is a pooler's that works transaction by transaction, such as `PgBouncer`.
    pub behind_pooler: bool,
    /// See [`Postgres::statement_timeout`].
    #[serde(deserialize_with = "whole")]
    pub statement_timeout_ms: u64,
}

/// Section `[redis]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    /// Where it is.
    pub url: ServerUrl,
    /// See [`Redis::response_timeout`].
    #[serde(deserialize_with = "whole")]
    pub response_timeout_ms: u64,
    /// See [`Redis::connect_timeout`].
    #[serde(deserialize_with = "whole")]
    pub connect_timeout_ms: u64,
}

/// Section `[sale]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sale {
    /// Purchases that one transaction takes.
    #[serde(deserialize_with = "whole")]
    pub max_batch: usize,
    /// Batches of one sale under way at a time.
    #[serde(deserialize_with = "whole")]
    pub batches_in_flight: usize,
    /// Transactions of all sales under way at a time.
    #[serde(deserialize_with = "whole")]
    pub commits_in_flight: usize,
    /// Purchases of one sale that may wait.
    #[serde(deserialize_with = "whole")]
    pub mailbox_requests: usize,
}

/// Section `[payment]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payment {
    /// Charges under way at a time, in each currency.
    #[serde(deserialize_with = "whole")]
    pub max_in_flight: usize,
    /// Orders remembered as due for a charge, in each currency.
    #[serde(deserialize_with = "whole")]
    pub queue_orders: usize,
    /// See [`Payment::expected_charge`].
    #[serde(deserialize_with = "whole")]
    pub expected_charge_ms: u64,
    /// See [`Payment::charge_timeout`].
    #[serde(deserialize_with = "whole")]
    pub charge_timeout_ms: u64,
    /// See [`Payment::give_up`].
    #[serde(deserialize_with = "whole")]
    pub give_up_ms: u64,
    /// See [`Payment::scan_period`].
    #[serde(deserialize_with = "whole")]
    pub scan_period_ms: u64,
    /// Failures in a row that open the breaker.
    #[serde(deserialize_with = "whole")]
    pub breaker_failures: u32,
    /// See [`Payment::breaker_open`].
    #[serde(deserialize_with = "whole")]
    pub breaker_open_ms: u64,
    /// Tries of a refund or look-up before it becomes a dead letter.
    #[serde(deserialize_with = "whole")]
    pub task_tries: u32,
}

/// Section `[sweeper]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweeper {
    /// See [`Sweeper::period`].
    #[serde(deserialize_with = "whole")]
    pub period_ms: u64,
    /// See [`Sweeper::cutoff`].
    #[serde(deserialize_with = "whole")]
    pub cutoff_ms: u64,
    /// See [`Sweeper::reaper_period`].
    #[serde(deserialize_with = "whole")]
    pub reaper_period_ms: u64,
    /// See [`Sweeper::reaper_grace`].
    #[serde(deserialize_with = "whole")]
    pub reaper_grace_ms: u64,
    /// Whether an order in doubt past the cutoff is failed at once, and late money refunded.
    pub fail_in_doubt: bool,
}

/// Section `[reconcile]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    /// See [`Reconcile::period`].
    #[serde(deserialize_with = "whole")]
    pub period_ms: u64,
    /// See [`Reconcile::lookback`].
    #[serde(deserialize_with = "whole")]
    pub lookback_ms: u64,
    /// See [`Reconcile::gap_period`].
    #[serde(deserialize_with = "whole")]
    pub gap_period_ms: u64,
}

/// Section `[provider]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// Which one.
    pub kind: ProviderKind,
    /// Where it is.
    pub url: ServerUrl,
    /// Charges only set money aside, until it is captured. Only the mock provider leaves a choice.
    pub two_step: bool,
    /// Who we are there. Never shown.
    pub secret_key: Secret,
}

/// The payment providers that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// `fluxbuy mock-provider`.
    Mock,
    /// Stripe.
    Stripe,
}

/// Section `[webhooks]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhooks {
    /// How they are signed.
    pub scheme: SignatureScheme,
    /// Which secrets are believed.
    pub secrets: Secrets,
    /// See [`Webhooks::tolerance`].
    #[serde(deserialize_with = "whole")]
    pub tolerance_ms: u64,
    /// See [`Webhooks::scan_period`].
    #[serde(deserialize_with = "whole")]
    pub scan_period_ms: u64,
    /// Tries before an event whose order never comes is given up.
    #[serde(deserialize_with = "whole")]
    pub event_tries: u32,
}

/// How webhooks are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureScheme {
    /// Standard Webhooks.
    Standard,
    /// Stripe's own.
    Stripe,
}

/// A secret. Never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "a secret" })
    }
}

/// Secrets, separated by commas. Never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secrets(String);

impl Secrets {
    /// Each of them.
    pub fn each(&self) -> impl Iterator<Item = &str> {
        self.0
            .split(',')
            .map(str::trim)
            .filter(|secret| !secret.is_empty())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.each().count())
    }
}

/// Section `[log]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// How lines are written.
    pub format: LogFormat,
    /// What is written: directives of `tracing_subscriber::EnvFilter`.
    pub filter: String,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For eyes.
    Text,
    /// One JSON object a line.
    Json,
}

/// Section `[test]`; not in the default file, since no build that is shipped has it.
#[cfg(feature = "test-switches")]
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TestSwitches {
    /// Leaves the status condition out of the claim, as the bug did that this engine exists to exclude.
    pub claim_without_guard: bool,
    /// Takes every delivery of a webhook for an event of its own, and settles by it without looking at the order's status again.
    pub webhooks_without_guard: bool,
}

/// Where a server is, perhaps with a password in it: shown only with the password left out.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ServerUrl(String);

impl ServerUrl {
    /// The whole URL, with its password: for connecting, never for logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Not set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has_scheme(&self, schemes: &[&str]) -> bool {
        schemes.iter().any(|scheme| {
            self.0
                .strip_prefix(scheme)
                .and_then(|rest| rest.strip_prefix("://"))
                .is_some_and(|rest| !rest.is_empty())
        })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whatever stands before the last @ of the authority may be a credential; a query may carry one as well.
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
        match rest.rsplit_once('@') {
            Some((_, place)) => write!(f, "{scheme}://***@{place}"),
            None if scheme.is_empty() => f.write_str(rest),
            None => write!(f, "{scheme}://{rest}"),
        }
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

macro_rules! durations {
    ($section:ident { $($(#[$doc:meta])* $getter:ident = $field:ident;)* }) => {
        impl $section {
            $($(#[$doc])* pub fn $getter(&self) -> Duration {
                Duration::from_millis(self.$field)
            })*
        }
    };
}

durations! { Http {
    /// Within it a connection must have sent its request's headers.
    header_read_timeout = header_read_timeout_ms;
    /// Within it a request's body must be there.
    body_read_timeout = body_read_timeout_ms;
    /// After it a purchase is answered with an unknown outcome.
    request_timeout = request_timeout_ms;
    /// After it a connection without a request is closed.
    connection_idle_timeout = connection_idle_timeout_ms;
    /// What requests under way get at a stop.
    drain_timeout = drain_timeout_ms;
} }
durations! { Postgres {
    /// The wait for a free connection.
    acquire_timeout = acquire_timeout_ms;
    /// The longest that one statement may run.
    statement_timeout = statement_timeout_ms;
} }
durations! { Redis {
    /// After it a script's outcome is unknown.
    response_timeout = response_timeout_ms;
    /// The longest that connecting may take.
    connect_timeout = connect_timeout_ms;
} }
durations! { Payment {
    /// What a charge usually takes.
    expected_charge = expected_charge_ms;
    /// After it one request to the provider has an unknown outcome.
    charge_timeout = charge_timeout_ms;
    /// After it a claim's holder leaves the order to the sweeper.
    give_up = give_up_ms;
    /// Between two scans for pending orders that nobody remembers.
    scan_period = scan_period_ms;
    /// How long the breaker stays open.
    breaker_open = breaker_open_ms;
} }
durations! { Webhooks {
    /// How far a signature's time may be from ours.
    tolerance = tolerance_ms;
    /// Between two looks for events that nobody has spoken of.
    scan_period = scan_period_ms;
} }
durations! { Sweeper {
    /// Between two passes.
    period = period_ms;
    /// An order that is open for longer is stuck.
    cutoff = cutoff_ms;
    /// Between two searches for reservations without an order.
    reaper_period = reaper_period_ms;
    /// A reservation younger than this may still get its order.
    reaper_grace = reaper_grace_ms;
} }
durations! { Reconcile {
    /// Between two passes.
    period = period_ms;
    /// How far back a pass looks.
    lookback = lookback_ms;
    /// Between two times that units are added up.
    gap_period = gap_period_ms;
} }

impl Postgres {
    /// The database as the schema's owner.
    pub fn owner_url(&self) -> &ServerUrl {
        if self.owner_url.is_empty() {
            &self.url
        } else {
            &self.owner_url
        }
    }
}

impl Config {
    /// Orders that can be charged before the sweeper's cutoff, as far as concurrency and the usual time of a charge tell. Of a sale
    /// that is larger, orders may be swept for want of capacity.
    pub fn charges_before_cutoff(&self) -> u64 {
        self.payment.max_in_flight as u64 * self.sweeper.cutoff_ms / self.payment.expected_charge_ms
    }

    /// Reads the settings: defaults, then `file`, then what `environment` (the process's, usually) has to say.
    ///
    /// # Errors
    /// [`Error`], naming every setting that isn't right, as far as they can be told at once.
    pub fn load(
        need: Need,
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let text = match file {
            None => None,
            Some(path) => Some((
                path.display().to_string(),
                std::fs::read_to_string(path).map_err(|source| Error::Unreadable {
                    path: path.to_owned(),
                    source,
                })?,
            )),
        };
        Self::from_layers(
            need,
            text.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
            environment,
        )
    }

    fn from_layers(
        need: Need,
        file: Option<(&str, &str)>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let mut layers = config::Config::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml));
        if let Some((name, text)) = file {
            // Parsed on its own first: a syntax error inside a layer wouldn't say which file it is in.
            config::Config::builder()
                .add_source(File::from_str(text, FileFormat::Toml))
                .build()
                .map_err(|e| Error::Syntax {
                    path: name.to_owned(),
                    detail: e.to_string(),
                })?;
            layers = layers.add_source(File::from_str(text, FileFormat::Toml));
        }
        let environment: HashMap<String, String> = environment.into_iter().collect();
        let environment = Environment::with_prefix(ENV_PREFIX)
            .separator("__")
            .source(Some(environment));
        let layered = layers.add_source(environment).build().map_err(refused)?;
        let unknown = unknown_settings(&layered)?;
        if !unknown.is_empty() {
            return Err(Error::Refused(unknown));
        }
        let config: Self = layered.try_deserialize().map_err(refused)?;
        config.validate(need)?;
        Ok(config)
    }

    /// Checks what types can't: ranges, what must be there, and how limits relate to each other.
    fn validate(&self, need: Need) -> Result<(), Error> {
        let mut check = Check::default();
        self.check_ranges(&mut check);
        self.check_relations(&mut check);
        self.check_texts(need, &mut check);
        if check.0.is_empty() {
            Ok(())
        } else {
            Err(Error::Refused(check.0))
        }
    }

    fn check_ranges(&self, check: &mut Check) {
        let Self {
            http,
            postgres,
            redis,
            sale,
            payment,
            sweeper,
            reconcile,
            webhooks,
            ..
        } = self;
        check.range("http.max_connections", http.max_connections as u64, 1..=1_000_000);
        check.range("http.max_body_bytes", http.max_body_bytes as u64, 256..=1_048_576);
        check.range(
            "http.header_read_timeout_ms",
            http.header_read_timeout_ms,
            10..=600_000,
        );
        check.range(
            "http.body_read_timeout_ms",
            http.body_read_timeout_ms,
            10..=600_000,
        );
        check.range("http.request_timeout_ms", http.request_timeout_ms, 10..=600_000);
        check.range(
            "http.connection_idle_timeout_ms",
            http.connection_idle_timeout_ms,
            10..=3_600_000,
        );
        check.range("http.drain_timeout_ms", http.drain_timeout_ms, 0..=600_000);
        check.range(
            "postgres.reserve_connections",
            postgres.reserve_connections.into(),
            1..=64,
        );
        check.range(
            "postgres.settle_connections",
            postgres.settle_connections.into(),
            1..=64,
        );
        check.range(
            "postgres.read_connections",
            postgres.read_connections.into(),
            1..=64,
        );
        check.range(
            "postgres.acquire_timeout_ms",
            postgres.acquire_timeout_ms,
            10..=60_000,
        );
        check.range(
            "postgres.statement_timeout_ms",
            postgres.statement_timeout_ms,
            100..=600_000,
        );
        check.range(
            "redis.response_timeout_ms",
            redis.response_timeout_ms,
            10..=60_000,
        );
        check.range("redis.connect_timeout_ms", redis.connect_timeout_ms, 10..=60_000);
        // 1,024 is as far as one script call was measured.
        check.range("sale.max_batch", sale.max_batch as u64, 1..=1_024);
        check.range("sale.batches_in_flight", sale.batches_in_flight as u64, 1..=8);
        check.range("sale.commits_in_flight", sale.commits_in_flight as u64, 1..=64);
        check.range(
            "sale.mailbox_requests",
            sale.mailbox_requests as u64,
            1..=1_000_000,
        );
        check.range("payment.max_in_flight", payment.max_in_flight as u64, 1..=100_000);
        check.range(
            "payment.queue_orders",
            payment.queue_orders as u64,
            1..=10_000_000,
        );
        check.range(
            "payment.expected_charge_ms",
            payment.expected_charge_ms,
            1..=600_000,
        );
        check.range(
            "payment.charge_timeout_ms",
            payment.charge_timeout_ms,
            10..=600_000,
        );
        check.range("payment.give_up_ms", payment.give_up_ms, 20..=3_600_000);
        check.range("payment.scan_period_ms", payment.scan_period_ms, 10..=600_000);
        check.range(
            "payment.breaker_failures",
            payment.breaker_failures.into(),
            1..=10_000,
        );
        check.range("payment.breaker_open_ms", payment.breaker_open_ms, 10..=600_000);
        check.range("payment.task_tries", payment.task_tries.into(), 1..=1_000);
        check.range("sweeper.period_ms", sweeper.period_ms, 10..=3_600_000);
        check.range("sweeper.cutoff_ms", sweeper.cutoff_ms, 30..=86_400_000);
        check.range(
            "sweeper.reaper_period_ms",
            sweeper.reaper_period_ms,
            10..=3_600_000,
        );
        check.range("sweeper.reaper_grace_ms", sweeper.reaper_grace_ms, 20..=3_600_000);
        check.range("reconcile.period_ms", reconcile.period_ms, 100..=86_400_000);
        check.range(
            "reconcile.lookback_ms",
            reconcile.lookback_ms,
            1_000..=2_592_000_000,
        );
        check.range(
            "reconcile.gap_period_ms",
            reconcile.gap_period_ms,
            100..=3_600_000,
        );
        check.range("webhooks.tolerance_ms", webhooks.tolerance_ms, 1_000..=3_600_000);
        check.range("webhooks.scan_period_ms", webhooks.scan_period_ms, 10..=600_000);
        check.range("webhooks.event_tries", webhooks.event_tries.into(), 1..=1_000);
    }

    fn check_relations(&self, check: &mut Check) {
        let Self {
            http,
            postgres,
            redis,
            sale,
            payment,
            sweeper,
            ..
        } = self;
        // A request under way at a stop gets its answer.
        check.at_least(
            ("http.drain_timeout_ms", http.drain_timeout_ms),
            ("http.request_timeout_ms", http.request_timeout_ms),
        );
        // A silent Redis is given up while the buyer still waits.
        check.below(
            ("redis.response_timeout_ms", redis.response_timeout_ms),
            ("http.request_timeout_ms", http.request_timeout_ms),
        );
        // Else no batch is ever full.
        check.at_least(
            ("sale.mailbox_requests", sale.mailbox_requests as u64),
            ("sale.max_batch", sale.max_batch as u64),
        );
        // Else transactions wait for a connection, and give up.
        check.at_least(
            (
                "postgres.reserve_connections",
                postgres.reserve_connections.into(),
            ),
            ("sale.commits_in_flight", sale.commits_in_flight as u64),
        );
        // A claim's holder has stopped well before the sweeper may take its claim over, and has tried at least once.
        // This only narrows the window; the fence closes it.
        check.below(
            ("payment.charge_timeout_ms", payment.charge_timeout_ms),
            ("payment.give_up_ms", payment.give_up_ms),
        );
        check.below(
            ("payment.give_up_ms", payment.give_up_ms),
            ("sweeper.cutoff_ms", sweeper.cutoff_ms),
        );
        // An order that only the scan can find is found before it counts as stuck.
        check.below(
            ("payment.scan_period_ms", payment.scan_period_ms),
            ("sweeper.cutoff_ms", sweeper.cutoff_ms),
        );
        // A reservation is without an order only when no transaction that could write it is alive.
        check.below(
            (
                "the sum of postgres.statement_timeout_ms and postgres.acquire_timeout_ms",
                postgres
                    .statement_timeout_ms
                    .saturating_add(postgres.acquire_timeout_ms),
            ),
            ("sweeper.reaper_grace_ms", sweeper.reaper_grace_ms),
        );
    }

    fn check_provider(&self, check: &mut Check) {
        let schemes: &[&str] = match self.provider.kind {
            ProviderKind::Mock => &["http"],
            ProviderKind::Stripe => &["https", "http"],
        };
        check.url("provider.url", &self.provider.url, schemes);
        if self.provider.kind == ProviderKind::Stripe && self.provider.secret_key.reveal().is_empty() {
            check.refuse("provider.secret_key", "is missing".to_owned());
        }
    }

    fn check_texts(&self, need: Need, check: &mut Check) {
        let postgres = &["postgres", "postgresql"];
        match need {
            Need::Serve => {
                check.url("postgres.url", &self.postgres.url, postgres);
                check.url("redis.url", &self.redis.url, &["redis"]);
                self.check_provider(check);
                if self.provider.kind == ProviderKind::Stripe
                    && self.webhooks.scheme != SignatureScheme::Stripe
                {
                    check.refuse(
                        "webhooks.scheme",
                        "isn't \"stripe\", as provider.kind is".to_owned(),
                    );
                }
            }
            Need::Migrate if self.postgres.owner_url.is_empty() => {
                check.url("postgres.url", &self.postgres.url, postgres);
            }
            Need::Migrate => check.url("postgres.owner_url", &self.postgres.owner_url, postgres),
            Need::Database => check.url("postgres.url", &self.postgres.url, postgres),
            Need::Ledger => {
                check.url("postgres.url", &self.postgres.url, postgres);
                self.check_provider(check);
            }
            Need::Reconcile => {
                check.url("postgres.url", &self.postgres.url, postgres);
                check.url("redis.url", &self.redis.url, &["redis"]);
                self.check_provider(check);
            }
        }
        if let Err(e) = tracing_subscriber::EnvFilter::try_new(&self.log.filter) {
            check.refuse("log.filter", e.to_string());
        }
    }
}

/// Collects what is wrong, so that one start tells all of it.
#[derive(Default)]
struct Check(Vec<Problem>);

impl Check {
    fn refuse(&mut self, setting: &str, wrong: String) {
        self.0.push(Problem {
            setting: setting.to_owned(),
            wrong,
            allowed: explanation(setting),
        });
    }

    fn range(&mut self, setting: &str, value: u64, allowed: RangeInclusive<u64>) {
        if !allowed.contains(&value) {
            let allowed = format!("{} to {}", allowed.start(), allowed.end());
            self.0.push(Problem {
                setting: setting.to_owned(),
                wrong: format!("is {value}"),
                allowed,
            });
        }
    }

    fn below(&mut self, lower: (&str, u64), upper: (&str, u64)) {
        if lower.1 >= upper.1 {
            self.0.push(Problem {
                setting: upper.0.to_owned(),
                wrong: format!("is {}, but {} is {}", upper.1, lower.0, lower.1),
                allowed: format!("above {}", lower.0),
            });
        }
    }

    fn at_least(&mut self, upper: (&str, u64), lower: (&str, u64)) {
        if upper.1 < lower.1 {
            self.0.push(Problem {
                setting: upper.0.to_owned(),
                wrong: format!("is {}, but {} is {}", upper.1, lower.0, lower.1),
                allowed: format!("at least {}", lower.0),
            });
        }
    }

    fn url(&mut self, setting: &str, url: &ServerUrl, schemes: &[&str]) {
        if url.is_empty() {
            self.refuse(setting, "is missing".to_owned());
        } else if !url.has_scheme(schemes) {
            self.refuse(
                setting,
                format!("doesn't begin with {}://", schemes.join(":// or ")),
            );
        }
    }
}

/// What `config.default.toml` says above this setting, as one line; empty when it isn't there.
fn explanation(setting: &str) -> String {
    let Some((section, key)) = setting.split_once('.') else {
        return String::new();
    };
    let header = format!("[{section}]");
    let mut comment: Vec<&str> = Vec::new();
    for line in DEFAULTS
        .lines()
        .skip_while(|line| *line != header)
        .skip(1)
        .take_while(|l| !l.starts_with('['))
    {
        match line.strip_prefix('#') {
            Some(text) => comment.push(text.trim()),
            None if line.split(" =").next() == Some(key) => return comment.join(" "),
            None => comment.clear(),
        }
    }
    String::new()
}

/// Every setting of the layers that the default file doesn't have. Told apart from the structs' own refusal so that
/// the whole name is there, and all of them at once.
fn unknown_settings(layered: &config::Config) -> Result<Vec<Problem>, Error> {
    type Sections = BTreeMap<String, BTreeMap<String, config::Value>>;
    let sections =
        |layers: config::Config| -> Result<Sections, Error> { layers.try_deserialize().map_err(refused) };
    let defaults = config::Config::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml));
    #[cfg(feature = "test-switches")]
    let defaults = defaults.add_source(File::from_str(
        "test.claim_without_guard = false\ntest.webhooks_without_guard = false",
        FileFormat::Toml,
    ));
    let known = sections(defaults.build().map_err(refused)?)?;

    let mut problems = Vec::new();
    let mut refuse = |setting: String, there_are: Vec<&str>| {
        problems.push(Problem {
            setting,
            wrong: "does not exist".to_owned(),
            allowed: there_are.join(", "),
        });
    };
    for (section, keys) in sections(layered.clone())? {
        match known.get(&section) {
            None => refuse(section, known.keys().map(String::as_str).collect()),
            Some(there) => {
                for key in keys.into_keys().filter(|key| !there.contains_key(key)) {
                    refuse(
                        format!("{section}.{key}"),
                        there.keys().map(String::as_str).collect(),
                    );
                }
            }
        }
    }
    Ok(problems)
}

/// Puts the setting's name in front of what the layers' reader found.
fn refused(error: ConfigError) -> Error {
    let (setting, wrong) = match error {
        ConfigError::Type {
            unexpected,
            expected,
            key,
            ..
        } => (
            key.unwrap_or_default(),
            format!("is {unexpected}, not {expected}"),
        ),
        ConfigError::At { error, key, .. } => (key.unwrap_or_default(), error.to_string()),
        ConfigError::NotFound(key) => (key, "is missing".to_owned()),
        other => (String::new(), other.to_string()),
    };
    let allowed = explanation(&setting);
    Error::Refused(vec![Problem {
        setting,
        wrong,
        allowed,
    }])
}

/// A whole number, as a number or (from the environment) as text. Left to itself the reader of layers would round
/// 1.5 and take `true` for 1.
fn whole<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    struct Whole;

    impl de::Visitor<'_> for Whole {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
            u64::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
            text.parse()
                .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
        }
    }

    let value = deserializer.deserialize_any(Whole)?;
    T::try_from(value).map_err(|_| de::Error::invalid_value(de::Unexpected::Unsigned(value), &Whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    const URLS: &str = r#"
        postgres.url = "postgres://fluxbuy@127.0.0.1:5432/fluxbuy"
        redis.url = "redis://127.0.0.1:6379/0"
        provider.url = "http://127.0.0.1:9000"
    "#;

    fn load(file: &str, environment: &[(&str, &str)]) -> Result<Config, Error> {
        let environment = environment
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Config::from_layers(
            Need::Serve,
            Some(("fluxbuy.toml", &format!("{URLS}\n{file}"))),
            environment,
        )
    }

    fn refusal(file: &str, environment: &[(&str, &str)]) -> String {
        load(file, environment).expect_err("must be refused").to_string()
    }

    #[test]
    fn the_default_file_is_complete_but_for_the_servers() {
        let config = load("", &[]).unwrap();
        assert_eq!(config.sweeper.cutoff(), Duration::from_mins(1));
        assert_eq!(config.sale.max_batch, 256);
        assert_eq!(config.http.listen, "127.0.0.1:8080".parse().unwrap());

        let bare = Config::from_layers(Need::Serve, None, [])
            .unwrap_err()
            .to_string();
        for setting in ["postgres.url", "redis.url", "provider.url"] {
            assert!(bare.contains(&format!("setting {setting}: is missing")), "{bare}");
        }
    }

    #[test]
    fn each_command_asks_for_the_servers_it_uses() {
        let database = [("FLUXBUY__POSTGRES__URL".to_owned(), "postgres://a@h/d".to_owned())];
        assert!(Config::from_layers(Need::Database, None, database.clone()).is_ok());
        assert!(Config::from_layers(Need::Migrate, None, database).is_ok());
        let owner = [(
            "FLUXBUY__POSTGRES__OWNER_URL".to_owned(),
            "postgres://o@h/d".to_owned(),
        )];
        let config = Config::from_layers(Need::Migrate, None, owner).unwrap();
        assert_eq!(config.postgres.owner_url().as_str(), "postgres://o@h/d");
    }

    #[test]
    fn the_environment_wins_over_the_file_and_the_file_over_the_defaults() {
        let file = "[sale]\nmax_batch = 8\nbatches_in_flight = 1";
        let config = load(
            file,
            &[
                ("FLUXBUY__SALE__MAX_BATCH", "16"),
                ("FLUXBUY__SWEEPER__FAIL_IN_DOUBT", "true"),
                ("FLUXBUY__HTTP__LISTEN", "0.0.0.0:0"),
                ("FLUXBUY__LOG__FORMAT", "json"),
                ("PATH", "/bin"),
            ],
        )
        .unwrap();
        assert_eq!((config.sale.max_batch, config.sale.batches_in_flight), (16, 1));
        assert_eq!(config.sale.mailbox_requests, 6000);
        assert!(config.sweeper.fail_in_doubt);
        assert_eq!(config.http.listen.port(), 0);
        assert_eq!(config.log.format, LogFormat::Json);
    }

    #[test]
    fn a_bad_setting_is_named_with_what_it_allows() {
        let cases = [
            ("sweeper.cutof_ms = 5", "sweeper.cutof_ms", "does not exist"),
            ("sweper.cutoff_ms = 5", "sweper", "does not exist"),
            ("sale.max_batch = 0", "sale.max_batch", "1 to 1024"),
            ("sale.max_batch = 1025", "sale.max_batch", "1 to 1024"),
            ("sale.max_batch = -1", "sale.max_batch", "1 to 1024"),
            ("sale.max_batch = 1.5", "sale.max_batch", "1 to 1024"),
            ("sale.max_batch = true", "sale.max_batch", "1 to 1024"),
            ("sale.max_batch = []", "sale.max_batch", "1 to 1024"),
            ("sale.max_batch = \"many\"", "sale.max_batch", "1 to 1024"),
            (
                "payment.task_tries = 4294967296",
                "payment.task_tries",
                "1 to 1000",
            ),
            (
                "sweeper.fail_in_doubt = \"perhaps\"",
                "sweeper.fail_in_doubt",
                "true or false",
            ),
            ("http.listen = \"localhost\"", "http.listen", "IP:PORT"),
            ("log.format = \"xml\"", "log.format", "\"text\" or \"json\""),
            ("log.filter = \"fluxbuy=loud\"", "log.filter", "directives"),
            (
                "provider.kind = \"bank\"",
                "provider.kind",
                "\"mock\" or \"stripe\"",
            ),
            (
                "provider.kind = \"stripe\"",
                "provider.secret_key",
                "Required with \"stripe\"",
            ),
            ("provider.kind = \"stripe\"", "webhooks.scheme", "\"stripe\""),
        ];
        for (file, setting, allowed) in cases {
            let said = refusal(file, &[]);
            assert!(said.contains(&format!("setting {setting}: ")), "{file}: {said}");
            assert!(said.contains(allowed), "{file}: {said}");
        }
    }

    #[test]
    fn limits_are_held_against_each_other() {
        let cases = [
            ("payment.charge_timeout_ms = 45000", "payment.give_up_ms"),
            ("payment.give_up_ms = 60000", "sweeper.cutoff_ms"),
            ("sweeper.cutoff_ms = 3000", "sweeper.cutoff_ms"),
            ("payment.scan_period_ms = 60000", "sweeper.cutoff_ms"),
            ("sweeper.reaper_grace_ms = 5500", "sweeper.reaper_grace_ms"),
            ("sale.mailbox_requests = 255", "sale.mailbox_requests"),
            ("http.drain_timeout_ms = 9999", "http.drain_timeout_ms"),
            ("http.request_timeout_ms = 500", "http.request_timeout_ms"),
        ];
        for (file, setting) in cases {
            let said = refusal(file, &[]);
            assert!(said.contains(&format!("setting {setting}: ")), "{file}: {said}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let said = refusal("sale.max_batch = 0", &[("FLUXBUY__PAYMENT__TASK_TRIES", "0")]);
        assert!(
            said.contains("sale.max_batch") && said.contains("payment.task_tries"),
            "{said}"
        );
    }

    #[test]
    fn a_bad_environment_is_refused_like_a_bad_file() {
        for (key, value, setting) in [
            ("FLUXBUY__SALE__MAX_BATCH", "lots", "sale.max_batch"),
            ("FLUXBUY__SALE__MAX_BATCH", "", "sale.max_batch"),
            ("FLUXBUY__SALE__MAX_BATHC", "1", "sale.max_bathc"),
            ("FLUXBUY__TEST__NO_SUCH_SWITCH", "true", "test"),
        ] {
            let said = refusal("", &[(key, value)]);
            assert!(said.contains(&format!("setting {setting}")), "{key}: {said}");
        }
    }

    #[test]
    fn urls_are_checked_and_never_shown_with_their_password() {
        let said = refusal("", &[("FLUXBUY__POSTGRES__URL", "mysql://u:hidden@h/d")]);
        assert!(
            said.contains("setting postgres.url") && !said.contains("hidden"),
            "{said}"
        );
        let config = load(
            "",
            &[(
                "FLUXBUY__POSTGRES__URL",
                "postgres://u:hid@den@h:1/d?password=hidden",
            )],
        )
        .unwrap();
        assert!(config.postgres.url.as_str().contains("hidden"));
        let shown = format!("{config:?} {}", config.postgres.url);
        assert!(
            shown.contains("postgres://***@h:1/d") && !shown.contains("hidden") && !shown.contains("den@")
        );
    }

    #[test]
    fn secrets_are_taken_apart_and_never_shown() {
        let config = load("webhooks.secrets = \"whsec_b25l, whsec_dHdv,\"", &[]).unwrap();
        let each: Vec<_> = config.webhooks.secrets.each().collect();
        assert_eq!(each, ["whsec_b25l", "whsec_dHdv"]);
        assert!(!format!("{config:?}").contains("whsec"));
        assert_eq!(load("", &[]).unwrap().webhooks.secrets.each().count(), 0);
    }

    #[test]
    fn a_file_that_is_not_toml_or_not_there_is_named() {
        let said = Config::from_layers(Need::Serve, Some(("a.toml", "[sale")), [])
            .unwrap_err()
            .to_string();
        assert!(said.contains("a.toml"), "{said}");
        let said = Config::load(Need::Serve, Some(Path::new("/no/such.toml")), [])
            .unwrap_err()
            .to_string();
        assert!(said.contains("/no/such.toml"), "{said}");
    }

    #[test]
    fn the_default_file_states_each_range_as_it_is_checked() {
        let mut config = load("", &[]).unwrap();
        config.http.drain_timeout_ms = u64::MAX;
        for (setting, range) in ranges_of(&mut config) {
            let text = explanation(&setting);
            assert!(text.contains(&range), "{setting}: {range:?} isn't in {text:?}");
        }
    }

    /// Every range, by driving every number out of it.
    fn ranges_of(config: &mut Config) -> Vec<(String, String)> {
        let Config {
            http,
            postgres,
            redis,
            sale,
            payment,
            sweeper,
            reconcile,
            webhooks,
            ..
        } = config;
        for ms in [
            &mut http.header_read_timeout_ms,
            &mut http.body_read_timeout_ms,
            &mut http.request_timeout_ms,
            &mut http.connection_idle_timeout_ms,
            &mut http.drain_timeout_ms,
            &mut postgres.acquire_timeout_ms,
            &mut postgres.statement_timeout_ms,
            &mut redis.response_timeout_ms,
            &mut redis.connect_timeout_ms,
            &mut payment.charge_timeout_ms,
            &mut payment.give_up_ms,
            &mut payment.scan_period_ms,
            &mut payment.breaker_open_ms,
            &mut sweeper.period_ms,
            &mut sweeper.cutoff_ms,
            &mut sweeper.reaper_period_ms,
            &mut sweeper.reaper_grace_ms,
            &mut reconcile.period_ms,
            &mut reconcile.lookback_ms,
            &mut reconcile.gap_period_ms,
            &mut webhooks.tolerance_ms,
            &mut webhooks.scan_period_ms,
        ] {
            *ms = u64::MAX;
        }
        for count in [
            &mut http.max_connections,
            &mut http.max_body_bytes,
            &mut sale.max_batch,
            &mut sale.batches_in_flight,
            &mut sale.commits_in_flight,
            &mut sale.mailbox_requests,
            &mut payment.max_in_flight,
            &mut payment.queue_orders,
        ] {
            *count = usize::MAX;
        }
        for count in [
            &mut postgres.reserve_connections,
            &mut postgres.settle_connections,
            &mut postgres.read_connections,
            &mut payment.breaker_failures,
            &mut payment.task_tries,
            &mut webhooks.event_tries,
        ] {
            *count = u32::MAX;
        }
        let mut check = Check::default();
        config.check_ranges(&mut check);
        assert_eq!(check.0.len(), 36, "a new setting needs its place above");
        check
            .0
            .into_iter()
            .map(|problem| (problem.setting, problem.allowed))
            .collect()
    }

    #[cfg(feature = "test-switches")]
    #[test]
    fn the_switch_exists_in_builds_that_ask_for_it() {
        let test = load("", &[]).unwrap().test;
        assert!(!test.claim_without_guard && !test.webhooks_without_guard);
        assert!(
            load("", &[("FLUXBUY__TEST__CLAIM_WITHOUT_GUARD", "true")])
                .unwrap()
                .test
                .claim_without_guard
        );
    }

    #[cfg(not(feature = "test-switches"))]
    #[test]
    fn the_switch_does_not_exist_in_other_builds() {
        assert!(refusal("", &[("FLUXBUY__TEST__CLAIM_WITHOUT_GUARD", "true")]).contains("setting test"));
    }
}
