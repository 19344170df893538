//! The front door: HTTP/1.1 in, questions to the [`FrontDesk`], answers and problems out.
//!
//! It checks everything that can be checked without the engine (who, which key, is the body well formed) before anything is
//! used up, and decides nothing about stock, orders or money. docs/api.md shows what it speaks.
//!
//! Architecture invariant: nothing in here knows the store, the gate or an actor; all it may ask is [`FrontDesk`].

mod accept;
mod answer;
mod body;
mod connection;
mod desk;
mod door;
mod extract;
mod form;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handlers;
mod problem;
mod request_id;
mod room;
mod route;
mod settings;
mod shielded;
mod time;
mod watch;

pub use accept::{DrainReport, serve};
pub use desk::FrontDesk;
pub use settings::{MAX_HEADER_BYTES, Settings};
