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
    /// What is asked about isn't there, or isn't this role's to see.
    pub(super) const CLASS_OF_ACCESS: &str = "42";
}

/// Whether a statement was refused because of what it asks about, and not for the state that the server is in.
pub(super) fn is_about_the_schema(error: &sqlx::Error) -> bool {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| code.starts_with(sqlstate::CLASS_OF_ACCESS))
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

    /// Maps an error of COMMIT itself. That it rolled back is known only where the server refuses the data, or asks for the transaction to be run
    /// again. Silence, a shutdown, a time-out, or a pooler's word for a server that is gone mean that nobody knows.
    pub(crate) fn at_commit(error: sqlx::Error) -> Self {
        match error.into() {
            refused @ (Self::Refused { .. } | Self::RunAgain(_)) => refused,
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

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::error::Error as StdError;
    use std::fmt;

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// A server's answer with this SQLSTATE.
    #[derive(Debug)]
    struct Answer(&'static str);

    impl fmt::Display for Answer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Answer {}

    impl DatabaseError for Answer {
        fn message(&self) -> &str {
            self.0
        }
        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }
        fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
            self
        }
        fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
            self
        }
        fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
            self
        }
        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    fn answer(code: &'static str) -> sqlx::Error {
        sqlx::Error::Database(Box::new(Answer(code)))
    }

    #[test]
    fn only_the_servers_own_refusal_says_that_a_commit_came_to_nothing() {
        // Shutdowns, a crash, a time-out, a full disk, and what a pooler says when the server behind it is gone.
        for other in [
            "57P01", "57P02", "57P03", "57014", "25P03", "53100", "08006", "08P01",
        ] {
            let error = Error::at_commit(answer(other));
            assert!(matches!(error, Error::OutcomeUnknown(_)), "{other}: {error}");
        }
        assert!(matches!(
            Error::at_commit(sqlx::Error::WorkerCrashed),
            Error::OutcomeUnknown(_)
        ));
        for refusal in ["22003", "23514", "P0001"] {
            let error = Error::at_commit(answer(refusal));
            assert!(matches!(error, Error::Refused { .. }), "{refusal}: {error}");
        }
        for again in ["40001", "40P01"] {
            let error = Error::at_commit(answer(again));
            assert!(matches!(error, Error::RunAgain(_)), "{again}: {error}");
        }
    }

    #[test]
    fn a_server_that_is_going_down_does_not_lack_the_schema() {
        assert!(is_about_the_schema(&answer("42P01")));
        assert!(is_about_the_schema(&answer("42501")));
        for other in [answer("57P01"), answer("53300"), sqlx::Error::WorkerCrashed] {
            assert!(!is_about_the_schema(&other), "{other}");
        }
    }
}
