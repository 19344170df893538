//! The front door over real sockets, with a desk behind it that does as the test says.

mod api;
mod drain;
mod garbage;
mod limits;
mod support;
