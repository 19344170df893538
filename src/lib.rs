//! fluxbuy, a flash-sale engine: stock is never oversold, no unit is ever lost, and no buyer pays for a unit they
//! don't get. See README.md for what it does and docs/ARCHITECTURE.md for where.

pub mod actors;
pub mod app;
pub mod config;
pub mod crash;
pub mod demo;
pub mod domain;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gate;
pub mod http;
pub mod ledger;
pub mod loading;
pub mod metrics;
pub mod mock_provider;
pub mod provider;
pub mod reconcile;
pub mod services;
pub mod signature;
pub mod sockets;
pub mod store;
pub mod tables;
