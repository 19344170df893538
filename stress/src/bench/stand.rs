//! Sales that are listed for a load, open from the beginning: what is measured is not who guesses the opening best.

use anyhow::Context as _;
use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use crate::audit::Terms;
use crate::scenarios::UNIT_PRICE_MINOR;
use crate::world::World;

/// Sales that are listed at a time.
const LISTED_AT_A_TIME: usize = 32;

/// A listed sale.
#[derive(Debug, Clone)]
pub(super) struct Stand {
    /// Its id.
    pub(super) sale: Uuid,
    /// What is on sale.
    pub(super) terms: Terms,
    /// Since when, on the database's clock.
    pub(super) opens_at: Timestamp,
}

#[derive(Deserialize)]
struct Listed {
    id: Uuid,
}

/// Lists a sale that is open at once.
///
/// # Errors
/// When the engine doesn't list it.
pub(super) async fn list(world: &World, name: &str, units: u32) -> anyhow::Result<Stand> {
    let mut stands = list_many(world, name, units, 1).await?;
    stands.pop().context("no sale was listed")
}

/// Lists as many alike.
///
/// # Errors
/// When the engine doesn't list one of them.
pub(super) async fn list_many(
    world: &World,
    name: &str,
    units: u32,
    count: u32,
) -> anyhow::Result<Vec<Stand>> {
    let now_micros: i64 = sqlx::query_scalar("SELECT micros(clock_timestamp())")
        .fetch_one(world.database())
        .await?;
    let opens_at = Timestamp::from_microsecond(now_micros)?;
    let terms = Terms {
        units: units.into(),
        unit_price_minor: UNIT_PRICE_MINOR,
        currency: "EUR".to_owned(),
        per_buyer_limit: None,
    };
    let body = json!({
        "name": name,
        "quantity": units,
        "unit_price_minor": UNIT_PRICE_MINOR,
        "currency": terms.currency,
        "opens_at": opens_at.to_string(),
    });
    let engine = &world.engines()[0];
    let (body, terms) = (&body, &terms);
    stream::iter(0..count)
        .map(|_| async move {
            let listed: Listed = engine.post_json("/v1/sales", body, 201).await?;
            anyhow::Ok(Stand {
                sale: listed.id,
                terms: terms.clone(),
                opens_at,
            })
        })
        .buffer_unordered(LISTED_AT_A_TIME)
        .try_collect()
        .await
}
