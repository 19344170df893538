//! Models of the engine, small enough to go through every interleaving of them. What is decided in them is decided by the engine's own code;
//! what Postgres, Redis and the provider guarantee is modelled. See docs/model.md.

// A state is made of facts that are so or not so.
#![allow(clippy::struct_excessive_bools)]

pub mod landmarks;
pub mod money;
pub mod run;
pub mod stock;
