//! Scripts: sent by their hash, and with their text when Redis has forgotten it.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use uuid::Uuid;

use super::Error;
use super::keys::SaleKeys;
use super::link::Link;
use crate::domain::SaleId;

/// How often a script is told. Once does, unless somebody makes Redis forget it in that very moment.
const TELLINGS: usize = 4;

/// One operation on one sale.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

macro_rules! scripts {
    ($($name:ident = $file:literal),+ $(,)?) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))));)+
    };
}

scripts! {
    RESERVE = "reserve.lua",
    RELEASE = "release.lua",
    LOAD_BEGIN = "load_begin.lua",
    LOAD_ORDERS = "load_orders.lua",
    LOAD_FINISH = "load_finish.lua",
    PULSE = "pulse.lua",
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            hash: redis::Script::new(text).get_hash().to_owned(),
        }
    }

    /// The script, to be run on this sale's keys; its arguments are yet to be added.
    pub(super) fn on(&self, sale: SaleId) -> Cmd {
        let keys = SaleKeys::of(sale);
        let mut command = redis::cmd("EVALSHA");
        let keys = keys.all();
        command.arg(&self.hash).arg(keys.len()).arg(&keys);
        command
    }

    /// Runs a command made by [`Self::on`]. A Redis that has forgotten the script is told it again.
    pub(super) async fn run(&self, link: &Link, command: &Cmd) -> Result<Value, Error> {
        let mut in_doubt = false;
        let settle = |in_doubt, error: Error| if in_doubt { error.in_doubt() } else { error };
        for _ in 0..TELLINGS {
            let sent = link
                .send(command)
                .await
                .map_err(|error| settle(in_doubt, error))?;
            in_doubt |= sent.in_doubt;
            let forgotten = ErrorKind::Server(ServerErrorKind::NoScript);
            if !matches!(&sent.result, Err(error) if error.kind() == forgotten) {
                return sent.into_answer().map_err(|error| settle(in_doubt, error));
            }
            let told = link.call(redis::cmd("SCRIPT").arg("LOAD").arg(self.text)).await;
            told.map_err(|error| settle(in_doubt, error))?;
        }
        let refused = Error::Refused {
            code: "NOSCRIPT".into(),
            detail: "forgotten again and again".into(),
        };
        Err(settle(in_doubt, refused))
    }
}

/// Adding whole columns of ids without a string for each.
pub(super) trait Columns {
    /// In the usual form, with hyphens.
    fn uuids(&mut self, ids: impl Iterator<Item = Uuid>) -> &mut Self;
    /// As 32 hex digits.
    fn uuids_simple(&mut self, ids: impl Iterator<Item = Uuid>) -> &mut Self;
}

impl Columns for Cmd {
    fn uuids(&mut self, ids: impl Iterator<Item = Uuid>) -> &mut Self {
        let mut buffer = Uuid::encode_buffer();
        for id in ids {
            self.arg(&*id.hyphenated().encode_lower(&mut buffer));
        }
        self
    }

    fn uuids_simple(&mut self, ids: impl Iterator<Item = Uuid>) -> &mut Self {
        let mut buffer = Uuid::encode_buffer();
        for id in ids {
            self.arg(&*id.simple().encode_lower(&mut buffer));
        }
        self
    }
}
