//! What can go wrong between us and Redis, by what is known about the call afterwards.

use redis::{ErrorKind, RedisError};

/// Why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection. The call was never sent: certainly nothing happened.
    #[error("redis can't be reached: {0}")]
    Unreachable(String),
    /// The call was sent and no answer came: it happened or it didn't, or is yet to happen. Repeating it is safe.
    #[error("it is unknown whether redis did it: {0}")]
    OutcomeUnknown(String),
    /// The memory is full, and the call would have needed more. Nothing happened. (A release needs none.)
    #[error("redis is out of memory")]
    OutOfMemory,
    /// Redis refused before doing anything, for a reason of its own: it is loading a snapshot, has become a replica, can't write
    /// to its disk, or doesn't let this user. Nothing happened.
    #[error("redis refused: {code} {detail}")]
    Refused {
        /// The first word of the answer, such as `LOADING`.
        code: String,
        /// The rest of it.
        detail: String,
    },
    /// Redis would throw keys away when its memory is full. Its `maxmemory-policy` must be `noeviction`.
    #[error("redis' maxmemory-policy is {found}, and must be noeviction")]
    EvictingPolicy {
        /// The policy it has.
        found: String,
    },
    /// The sale's keys are not loaded, or were replaced while they were being read.
    #[error("the sale's keys in redis are not loaded, or changed meanwhile")]
    Unprimed,
    /// More requests at once than a script should be kept busy with. Nothing was sent.
    #[error("{given} requests are more than the {limit} of one batch")]
    BatchTooLarge {
        /// How many there were.
        given: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The address isn't one.
    #[error("invalid redis url: {0}")]
    InvalidUrl(String),
    /// An answer that has no place here: a defect of ours, or not the Redis we expect. All scripts check before they
    /// write, so most probably nothing happened.
    #[error("unexpected answer from redis: {0}")]
    Other(String),
}

impl Error {
    /// Whether it is certain that the call changed nothing and never will.
    pub fn nothing_happened(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::OutOfMemory
            | Self::Refused { .. }
            | Self::EvictingPolicy { .. }
            | Self::Unprimed
            | Self::BatchTooLarge { .. }
            | Self::InvalidUrl(_) => true,
            Self::OutcomeUnknown(_) | Self::Other(_) => false,
        }
    }

    /// The same, when an earlier sending of the call may have taken effect.
    pub(super) fn in_doubt(self) -> Self {
        if self.nothing_happened() {
            Self::OutcomeUnknown(self.to_string())
        } else {
            self
        }
    }

    /// The one mapping from the client's errors, for a call that was handed to a connection.
    pub(super) fn after_send(error: &RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {
                let code = error.code().unwrap_or("ERR");
                let detail = error.detail().unwrap_or_default();
                match code {
                    "OOM" => Self::OutOfMemory,
                    // `ERR` is what a script that fails on its way answers with.
                    "ERR" => Self::Other(detail.into()),
                    _ => Self::Refused {
                        code: code.into(),
                        detail: detail.into(),
                    },
                }
            }
            ErrorKind::Io | ErrorKind::Parse => Self::OutcomeUnknown(error.to_string()),
            _ => Self::Other(error.to_string()),
        }
    }
}
