//! A provider's webhooks: told from forgeries over the raw bytes first, and read only then.

use hyper::HeaderMap;

use crate::domain::ProviderEvent;
use crate::metrics::ProviderName;
use crate::signature::{Unverified, Verifier};

/// The longest name of an event, and of its kind, in characters.
const MAX_NAME_CHARS: usize = 255;

/// Reads a verified body; `None` when it is no event of this provider.
pub type Reader = fn(&[u8]) -> Option<ProviderEvent>;

/// The webhooks of one provider.
#[derive(Debug, Clone)]
pub struct Webhooks {
    /// Whose: its name is the one in paths, in the database and on metrics.
    pub provider: ProviderName,
    /// Tells its requests from others'.
    pub verifier: Verifier,
    /// Reads its events.
    pub reader: Reader,
}

/// Why a request brings no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// It isn't the provider's, or not any more.
    #[error(transparent)]
    Unverified(#[from] Unverified),
    /// The provider has signed it, and it is no event.
    #[error("its body is no event of this provider")]
    Unreadable,
}

impl Webhooks {
    /// The event of a request that came at `now_secs` since 1970.
    ///
    /// # Errors
    /// [`Refused`]: nothing may be done about it but to count it.
    pub fn receive(&self, headers: &HeaderMap, body: &[u8], now_secs: i64) -> Result<ProviderEvent, Refused> {
        self.verifier.verify(headers, body, now_secs)?;
        // Serde would take an array of the fields for the object, too.
        let is_object = body.trim_ascii_start().starts_with(b"{");
        let event = is_object
            .then(|| (self.reader)(body))
            .flatten()
            .ok_or(Refused::Unreadable)?;
        let fit = |name: &str| {
            (1..=MAX_NAME_CHARS).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic())
        };
        if fit(&event.id) && fit(&event.kind) {
            Ok(event)
        } else {
            Err(Refused::Unreadable)
        }
    }
}
