//! Looking at what the gate holds, without keeping it from its work.

use jiff::Timestamp;
use redis::Value;
use rustc_hash::{FxBuildHasher, FxHashSet};
use uuid::Uuid;

use super::keys::SaleKeys;
use super::reply::{self, Readiness, Reply};
use super::script;
use super::{Error, Gate};
use crate::domain::{Buyer, IdempotencyDigest, OrderId, SaleId};

/// Entries that a page is asked to hold; Redis may give some more or less.
const PAGE_ENTRIES: usize = 1000;

/// How often a scan begins anew when the sale was loaded again under it.
const SCANS: usize = 3;

pub use crate::domain::reconcile::gate::Pulse;

/// Whether the gate knows a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Not at all.
    NotLoaded,
    /// Somebody is loading it, and gave a sign within 2 s.
    Loading,
    /// As it is now.
    Loaded(Pulse),
}

/// Units held (or owned) by an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldReservation {
    /// The order.
    pub order: OrderId,
    /// Its buyer.
    pub buyer: Buyer,
    /// The name of the purchase.
    pub digest: IdempotencyDigest,
    /// Its units.
    pub quantity: i32,
    /// When they were taken or loaded, by Redis' clock.
    pub reserved_at: Timestamp,
}

impl Gate {
    /// Epoch, stock and number of keys, cheaply and at one instant; `None` while the sale isn't loaded.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn pulse(&self, sale: SaleId) -> Result<Option<Pulse>, Error> {
        Ok(match self.standing(sale).await? {
            Standing::NotLoaded | Standing::Loading => None,
            Standing::Loaded(pulse) => Some(pulse),
        })
    }

    /// The same, with a sale that is being loaded told from one that isn't.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn standing(&self, sale: SaleId) -> Result<Standing, Error> {
        read_standing(script::PULSE.run(&self.link, &script::PULSE.on(sale)).await?)
    }

    /// The purchases that the sale knows: all that were known when it was called, and some of those that came to be known
    /// meanwhile. Read page by page, about 1,000 purchases per page.
    ///
    /// # Errors
    /// [`Error::Unprimed`] when the sale isn't loaded, or is loaded again and again meanwhile; otherwise what is in the way.
    pub async fn known_keys(&self, sale: SaleId) -> Result<FxHashSet<IdempotencyDigest>, Error> {
        let key = SaleKeys::of(sale).keys;
        let mut before = self.pulse(sale).await?.ok_or(Error::Unprimed)?;
        for _ in 0..SCANS {
            let mut known = FxHashSet::with_capacity_and_hasher(before.keys as usize, FxBuildHasher);
            let mut cursor = 0;
            loop {
                let page;
                (cursor, page) = self.page(&key, cursor).await?;
                for (digest, _) in page {
                    known.insert(IdempotencyDigest(parsed_uuid(&digest)?));
                }
                if cursor == 0 {
                    break;
                }
            }
            let after = self.pulse(sale).await?.ok_or(Error::Unprimed)?;
            if after.epoch == before.epoch {
                return Ok(known);
            }
            before = after;
        }
        Err(Error::Unprimed)
    }

    /// A page of the orders that hold units in the sale, and the cursor of the next page; begin with 0, the last page
    /// gives 0. An order that holds units throughout comes up at least once, and maybe twice. Nothing, when the sale isn't loaded.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn reservations(
        &self,
        sale: SaleId,
        cursor: u64,
    ) -> Result<(u64, Vec<HeldReservation>), Error> {
        let (cursor, page) = self.page(&SaleKeys::of(sale).held, cursor).await?;
        let held = page
            .iter()
            .map(|(order, value)| held(order, value))
            .collect::<Result<_, _>>()?;
        Ok((cursor, held))
    }

    /// The reservations of these orders, in their order; `None` for one that holds nothing.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn reservations_of(
        &self,
        sale: SaleId,
        orders: &[OrderId],
    ) -> Result<Vec<Option<HeldReservation>>, Error> {
        let names: Vec<String> = orders.iter().map(OrderId::to_string).collect();
        let values = self.fields(&SaleKeys::of(sale).held, &names).await?;
        names
            .iter()
            .zip(values)
            .map(|(order, value)| value.map(|value| held(order, &value)).transpose())
            .collect()
    }

    /// A page of the buyers of a sale with a limit, with the units that each is counted as holding, and the cursor of the next page.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn buyers(&self, sale: SaleId, cursor: u64) -> Result<(u64, Vec<(Buyer, i64)>), Error> {
        let (cursor, page) = self.page(&SaleKeys::of(sale).buyers, cursor).await?;
        let buyers = page
            .iter()
            .map(|(buyer, units)| {
                let buyer = Buyer::parse(buyer)
                    .ok_or_else(|| Error::Other(format!("an unreadable buyer: {buyer:?}")))?;
                Ok((buyer, reply::parsed(units)?))
            })
            .collect::<Result<_, Error>>()?;
        Ok((cursor, buyers))
    }

    /// Which of these buyers the sale counts no units of.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn buyers_unknown(&self, sale: SaleId, buyers: &[Buyer]) -> Result<Vec<Buyer>, Error> {
        let names: Vec<String> = buyers.iter().map(Buyer::to_string).collect();
        let values = self.fields(&SaleKeys::of(sale).buyers, &names).await?;
        let unknown = buyers.iter().zip(values).filter(|(_, units)| units.is_none());
        Ok(unknown.map(|(buyer, _)| buyer.clone()).collect())
    }

    /// The values of some fields of a hash.
    async fn fields(&self, key: &str, names: &[String]) -> Result<Vec<Option<String>>, Error> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(key).arg(names);
        let values = Reply::new(self.link.call(&command).await?)?.rest();
        values
            .map(|value| match value {
                Value::Nil => Ok(None),
                value => owned(&value).map(Some),
            })
            .collect()
    }

    /// A page of a hash, and the cursor of the next.
    async fn page(&self, key: &str, cursor: u64) -> Result<(u64, Vec<(String, String)>), Error> {
        let mut command = redis::cmd("HSCAN");
        command.arg(key).arg(cursor).arg("COUNT").arg(PAGE_ENTRIES);
        let mut reply = Reply::new(self.link.call(&command).await?)?;
        let next = reply.parsed()?;
        let mut entries = Reply::new(reply.value()?)?.rest();
        let mut page = Vec::new();
        while let (Some(field), Some(value)) = (entries.next(), entries.next()) {
            page.push((owned(&field)?, owned(&value)?));
        }
        Ok((next, page))
    }
}

/// Reads what the script answers.
pub(super) fn read_standing(answer: Value) -> Result<Standing, Error> {
    let mut reply = Reply::new(answer)?;
    Ok(match reply.readiness()? {
        Readiness::Unprimed => Standing::NotLoaded,
        Readiness::Loading => Standing::Loading,
        Readiness::Ready => Standing::Loaded(Pulse {
            epoch: reply.parsed()?,
            available: reply.parsed()?,
            keys: reply.int()?.unsigned_abs(),
            changes: reply.parsed()?,
        }),
    })
}

fn owned(value: &Value) -> Result<String, Error> {
    reply::text(value).map(str::to_owned)
}

fn parsed_uuid(text: &str) -> Result<Uuid, Error> {
    reply::parsed(text)
}

/// Reads an entry of the hash of reservations: the order, and `quantity:reserved_at_us:digest:buyer`.
pub(super) fn held(order: &str, value: &str) -> Result<HeldReservation, Error> {
    let unreadable = || Error::Other(format!("an unreadable reservation: {value:?}"));
    // The buyer comes last, because it may hold colons.
    let mut parts = value.splitn(4, ':');
    let mut part = || parts.next().ok_or_else(unreadable);
    Ok(HeldReservation {
        order: OrderId(parsed_uuid(order)?),
        quantity: reply::parsed(part()?)?,
        reserved_at: Timestamp::from_microsecond(reply::parsed(part()?)?).map_err(|_| unreadable())?,
        digest: IdempotencyDigest(parsed_uuid(part()?)?),
        buyer: Buyer::parse(part()?).ok_or_else(unreadable)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_read_and_its_buyer_may_hold_colons() {
        let order = OrderId::fresh();
        let digest = Uuid::from_u128(0xabc);
        let value = format!("3:1700000000000001:{}:user:42:x", digest.simple());
        let read = held(&order.to_string(), &value).unwrap();
        assert_eq!(read.order, order);
        assert_eq!(read.quantity, 3);
        assert_eq!(read.reserved_at.as_microsecond(), 1_700_000_000_000_001);
        assert_eq!(read.digest, IdempotencyDigest(digest));
        assert_eq!(read.buyer.as_str(), "user:42:x");
    }

    #[test]
    fn an_unreadable_reservation_is_an_error() {
        let order = OrderId::fresh().to_string();
        for bad in [
            "",
            "3",
            "x:1:2:ann",
            "3:1700000000000001:zz:ann",
            "3:1700000000000001:00000000000000000000000000000abc:",
        ] {
            assert!(held(&order, bad).is_err(), "{bad:?}");
        }
    }
}
