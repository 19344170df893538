//! `fluxbuy ledger verify`: reads orders, ledger and the provider's book, and holds them against each other.

use std::collections::HashSet;

use anyhow::Context as _;

use crate::domain::{SaleId, Verification, verify};
use crate::provider::PaymentProvider;
use crate::store::Store;

/// Looks at what is different before it is called a difference: orders move between the look at the book and the look at the rows.
const LOOKS: usize = 3;

/// Verifies the ledger of one sale, or of all. Only what was different at every one of three looks is a difference.
///
/// # Errors
/// When the database or the provider can't be asked.
pub async fn verify_all(
    store: &Store,
    provider: &dyn PaymentProvider,
    sale: Option<SaleId>,
) -> anyhow::Result<Verification> {
    let mut found = look(store, provider, sale).await?;
    for _ in 1..LOOKS {
        if found.differences.is_empty() {
            break;
        }
        let before: HashSet<String> = found.differences.iter().map(ToString::to_string).collect();
        found = look(store, provider, sale).await?;
        found
            .differences
            .retain(|difference| before.contains(&difference.to_string()));
    }
    Ok(found)
}

async fn look(
    store: &Store,
    provider: &dyn PaymentProvider,
    sale: Option<SaleId>,
) -> anyhow::Result<Verification> {
    // The book first: whatever is in it was claimed before, so that its order is among the accounts.
    let book = provider
        .book(None)
        .await
        .map_err(anyhow::Error::msg)
        .context("the provider's book can't be read")?;
    let accounts = store.accounts(sale).await.context("the ledger can't be read")?;
    Ok(verify(&accounts, &book, sale.is_none()))
}
