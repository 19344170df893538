//! Reading what the scripts answer.

use std::str::FromStr;

use redis::Value;

use super::Error;

/// The elements of an answer, one after the other. A script's first says whether the sale was ready.
pub(super) struct Reply(std::vec::IntoIter<Value>);

/// Whether the sale's keys were loaded, the first element of most answers.
pub(super) enum Readiness {
    Ready,
    Unprimed,
    Loading,
}

impl Reply {
    pub(super) fn new(value: Value) -> Result<Self, Error> {
        match value {
            Value::Array(values) => Ok(Self(values.into_iter())),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn value(&mut self) -> Result<Value, Error> {
        self.0
            .next()
            .ok_or_else(|| Error::Other("an answer is too short".into()))
    }

    pub(super) fn readiness(&mut self) -> Result<Readiness, Error> {
        match self.int()? {
            0 => Ok(Readiness::Ready),
            1 => Ok(Readiness::Unprimed),
            2 => Ok(Readiness::Loading),
            other => Err(unexpected(&Value::Int(other))),
        }
    }

    pub(super) fn int(&mut self) -> Result<i64, Error> {
        int(&self.value()?)
    }

    /// The next element, a text, as what it stands for.
    pub(super) fn parsed<T: FromStr>(&mut self) -> Result<T, Error> {
        parsed(text(&self.value()?)?)
    }

    /// The remaining elements.
    pub(super) fn rest(self) -> impl Iterator<Item = Value> {
        self.0
    }
}

pub(super) fn int(value: &Value) -> Result<i64, Error> {
    match value {
        Value::Int(int) => Ok(*int),
        Value::BulkString(_) => parsed(text(value)?),
        other => Err(unexpected(other)),
    }
}

pub(super) fn text(value: &Value) -> Result<&str, Error> {
    let bytes = match value {
        Value::BulkString(bytes) => bytes.as_slice(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.as_bytes(),

        other => return Err(unexpected(other)),
    };
    std::str::from_utf8(bytes).map_err(|_| unexpected(value))
}

pub(super) fn parsed<T: FromStr>(text: &str) -> Result<T, Error> {
    text.parse()
        .map_err(|_| Error::Other(format!("{text:?} where something else belongs")))
}

pub(super) fn unexpected(value: &Value) -> Error {
    Error::Other(format!("{value:?} where something else belongs"))
}
