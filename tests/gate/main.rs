//! The gate against a real Redis.

mod support;

mod any_life;
mod load;
mod release;
mod reserve;
mod trouble;
