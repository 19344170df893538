//! fluxbuy
