//! One mapping from what sqlx says to what the engine may conclude from it.

/// What a failed statement or transaction allows to conclude.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The database couldn't be asked; certainly nothing was committed.
    #[error("postgres can't be asked: {0}")]
    Unavailable(String),
    /// The connection was lost at COMMIT: it may have happened or not. Run the same batch again to find out.
    #[error("the outcome of a commit is unknown: {0}")]
    OutcomeUnknown(String),
    /// A deadlock or serialization failure; nothing was committed, the same batch may be run again at once.
    #[error("postgres asks for the transaction to be run again: {0}")]
    RunAgain(String),
    /// A constraint, trigger or data error refused it; nothing was committed.
    #[error("postgres refused ({code} {constraint}): {message}")]
    Refused {
        /// SQLSTATE.
        code: String,
        /// Name of the constraint, or empty.
        constraint: String,
        /// The server's words.
        message: String,
    },
    /// A statement answered in a way that the schema rules out.
    #[error("unexpected answer from postgres: {0}")]
    Unexpected(String),
}

/// SQLSTATEs that code decides by.
mod sqlstate {
    pub(super) const SERIALIZATION_FAILURE: &str = "40001";
    pub(super) const DEADLOCK_DETECTED: &str = "40P01";
    /// Classes in which the data of the statement is at fault, not the server: data exception, integrity violation, raised exception.
    pub(super) const CLASSES_OF_BAD_DATA: [&str; 3] = ["22", "23", "P0"];
}

impl Error {
    /// Whether this is the violation of the constraint with this name.
    pub fn violates(&self, name: &str) -> bool {
        matches!(self, Self::Refused { constraint, .. } if constraint == name)
    }

    /// Whether the data that was sent is at fault, so that a smaller batch without the bad row may succeed.
    pub fn is_bad_data(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Maps an error of COMMIT itself: an answer of the server means that it rolled back; silence means that nobody knows.
    pub(crate) fn at_commit(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(_) => error.into(),
            other => Self::OutcomeUnknown(other.to_string()),
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let sqlx::Error::Database(refusal) = &error else {
            return match error {
                sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::ColumnNotFound(_)
                | sqlx::Error::RowNotFound => Self::Unexpected(error.to_string()),
                other => Self::Unavailable(other.to_string()),
            };
        };
        let code = refusal
            .code()
            .map(std::borrow::Cow::into_owned)
            .unwrap_or_default();
        match code.as_str() {
            sqlstate::SERIALIZATION_FAILURE | sqlstate::DEADLOCK_DETECTED => {
                Self::RunAgain(refusal.message().to_owned())
            }
            code if sqlstate::CLASSES_OF_BAD_DATA
                .iter()
                .any(|class| code.starts_with(class)) =>
            {
                Self::Refused {
                    code: code.to_owned(),
                    constraint: refusal.constraint().unwrap_or_default().to_owned(),
                    message: refusal.message().to_owned(),
                }
            }
            code => Self::Unavailable(format!("{code}: {}", refusal.message())),
        }
    }
}
