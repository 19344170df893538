//! Verifying the ledger: orders, our books and the provider's, held against each other to the minor unit. Pure.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::{ChargeName, Currency, OrderId, OrderStatus, SaleId};

/// An order, and what the ledger has under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The order.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// Where it stands; `None` when there is no such order.
    pub status: Option<OrderStatus>,
    /// What it costs.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: Currency,
    /// The ledger has movements in another currency.
    pub foreign_currency: bool,
    /// Money taken, by the ledger.
    pub charged_minor: i64,
    /// Money paid back, by the ledger.
    pub refunded_minor: i64,
    /// Rows of the ledger.
    pub movements: i64,
    /// A refund or a question to the provider is under way.
    pub owed: bool,
}

/// A charge in the provider's book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookEntry {
    /// Our name for it, as the provider has it.
    pub reference: String,
    /// Money taken; 0 for a charge that took none.
    pub captured_minor: i64,
    /// What of it went back.
    pub refunded_minor: i64,
    /// Money that is set aside, and neither taken nor let go.
    pub authorised_minor: i64,
    /// In which currency.
    pub currency: Option<Currency>,
}

/// Something that doesn't add up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Whose: an order, or a name in the provider's book.
    pub of: String,
    /// What.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.of, self.what)
    }
}

/// The sums of a sale, in minor units of its currency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaleSum {
    /// The sale.
    pub sale: SaleId,
    /// Its currency.
    pub currency: Currency,
    /// Orders that are paid.
    pub paid_orders: u64,
    /// What the ledger has taken.
    pub charged_minor: i64,
    /// What the ledger has paid back.
    pub refunded_minor: i64,
    /// What the provider has taken.
    pub captured_minor: i64,
    /// What the provider has paid back.
    pub provider_refunded_minor: i64,
}

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// All that doesn't add up.
    pub differences: Vec<Difference>,
    /// Orders that are on their way: what is different about them may be no difference in a moment.
    pub on_their_way: u64,
    /// Orders that were looked at.
    pub orders: u64,
    /// Rows of the ledger that were added up.
    pub movements: u64,
    /// A row for each sale.
    pub sales: Vec<SaleSum>,
}

/// What the provider's book has for an order.
#[derive(Default, Clone)]
struct Booked {
    charges: u32,
    captured: i64,
    refunded: i64,
    foreign: bool,
}

/// Holds orders, ledger and book against each other. With `whole`, the accounts are all there are, and a charge of the book that belongs to
/// none of them is a difference.
pub fn verify(accounts: &[Account], book: &[BookEntry], whole: bool) -> Verification {
    let mut found = Verification::default();
    let currencies: HashMap<OrderId, Currency> = accounts
        .iter()
        .map(|account| (account.order, account.currency))
        .collect();
    let mut booked: HashMap<OrderId, Booked> = HashMap::new();
    for entry in book
        .iter()
        .filter(|entry| entry.captured_minor != 0 || entry.refunded_minor != 0)
    {
        let order = ChargeName::parse(&entry.reference).map(|name| name.order);
        match order.and_then(|order| Some((order, currencies.get(&order)?))) {
            Some((order, currency)) => {
                let of = booked.entry(order).or_default();
                of.charges += 1;
                of.captured += entry.captured_minor;
                of.refunded += entry.refunded_minor;
                of.foreign |= entry.currency != Some(*currency);
            }
            None if whole => found.differences.push(Difference {
                of: entry.reference.clone(),
                what: format!(
                    "the provider has taken {} and paid back {} for no order of ours",
                    entry.captured_minor, entry.refunded_minor
                ),
            }),
            None => {}
        }
    }
    let mut sales: BTreeMap<SaleId, SaleSum> = BTreeMap::new();
    for account in accounts {
        let of = booked.remove(&account.order).unwrap_or_default();
        found.orders += 1;
        found.movements += account.movements.unsigned_abs();
        let sum = sales.entry(account.sale).or_insert_with(|| SaleSum {
            sale: account.sale,
            currency: account.currency,
            paid_orders: 0,
            charged_minor: 0,
            refunded_minor: 0,
            captured_minor: 0,
            provider_refunded_minor: 0,
        });
        sum.paid_orders += u64::from(account.status == Some(OrderStatus::Paid));
        sum.charged_minor += account.charged_minor;
        sum.refunded_minor += account.refunded_minor;
        sum.captured_minor += of.captured;
        sum.provider_refunded_minor += of.refunded;

        let on_its_way = account.owed || account.status.is_some_and(OrderStatus::is_open);
        found.on_their_way += u64::from(on_its_way);
        let differences = differences(account, &of, on_its_way);
        found
            .differences
            .extend(differences.into_iter().map(|what| Difference {
                of: format!("order {}", account.order),
                what,
            }));
    }
    found.sales = sales.into_values().collect();
    found
}

/// What is wrong about one order. On its way, it may have moved between one look and the other: only what can never be is told.
fn differences(account: &Account, of: &Booked, on_its_way: bool) -> Vec<String> {
    let Account {
        charged_minor: charged,
        refunded_minor: refunded,
        ..
    } = *account;
    let mut wrong = Vec::new();
    let Some(status) = account.status else {
        return vec![format!(
            "the ledger has {charged} taken and {refunded} paid back, and there is no such order that was ever claimed"
        )];
    };
    if account.foreign_currency || of.foreign {
        wrong.push(format!("not all of its money is in {}", account.currency));
    }
    if refunded > charged || of.refunded > of.captured {
        wrong.push(format!(
            "more was paid back than taken: {refunded} of {charged} by the ledger, {} of {} by the provider",
            of.refunded, of.captured
        ));
    }
    if of.charges > 1 {
        wrong.push(format!("the provider has charged it {} times", of.charges));
    }
    if on_its_way {
        return wrong;
    }
    wrong.extend(not_as_it_must_be(account, status));
    if (charged, refunded) != (of.captured, of.refunded) {
        wrong.push(format!(
            "the ledger has {charged} taken and {refunded} paid back, and the provider {} and {}",
            of.captured, of.refunded
        ));
    }
    wrong
}

/// What is wrong between an order that is at rest and its rows in the ledger, the provider left aside.
pub fn against_its_order(account: &Account) -> Vec<String> {
    let mut wrong = Vec::new();
    if account.foreign_currency {
        wrong.push(format!("not all of its money is in {}", account.currency));
    }
    wrong.extend(
        account
            .status
            .and_then(|status| not_as_it_must_be(account, status)),
    );
    wrong
}

fn not_as_it_must_be(account: &Account, status: OrderStatus) -> Option<String> {
    let Account {
        amount_minor: amount,
        charged_minor: charged,
        refunded_minor: refunded,
        ..
    } = *account;
    let as_it_must_be = match status {
        OrderStatus::Paid => charged == amount && refunded < amount,
        OrderStatus::Refunded => charged == amount && refunded == amount,
        _ => charged == refunded,
    };
    (!as_it_must_be).then(|| {
        format!(
            "it is {status} and costs {amount}, and the ledger has {charged} taken and {refunded} paid back"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eur() -> Currency {
        Currency::parse("EUR").unwrap()
    }

    fn account(status: OrderStatus, charged_minor: i64, refunded_minor: i64) -> Account {
        Account {
            order: OrderId::fresh(),
            sale: SaleId(uuid::Uuid::nil()),
            status: Some(status),
            amount_minor: 100,
            currency: eur(),
            foreign_currency: false,
            charged_minor,
            refunded_minor,
            movements: i64::from(charged_minor > 0) + i64::from(refunded_minor > 0),
            owed: false,
        }
    }

    fn entry(account: &Account, captured_minor: i64, refunded_minor: i64) -> BookEntry {
        BookEntry {
            reference: format!("{}:1", account.order),
            captured_minor,
            refunded_minor,
            authorised_minor: 0,
            currency: Some(eur()),
        }
    }

    fn wrong(account: &Account, book: &[BookEntry]) -> usize {
        verify(std::slice::from_ref(account), book, true)
            .differences
            .len()
    }

    #[test]
    fn what_adds_up_is_no_difference() {
        use OrderStatus as S;
        for (status, charged, refunded) in [
            (S::Paid, 100, 0),
            (S::Paid, 100, 40),
            (S::Refunded, 100, 100),
            (S::Failed, 0, 0),
            (S::Failed, 100, 100),
        ] {
            let account = account(status, charged, refunded);
            let book = [entry(&account, charged, refunded)];
            assert_eq!(wrong(&account, &book), 0, "{status} {charged} {refunded}");
        }
    }

    #[test]
    fn every_cent_that_is_off_is_told() {
        use OrderStatus as S;
        let paid = account(S::Paid, 100, 0);
        assert_eq!(wrong(&paid, &[]), 1, "the provider has nothing");
        assert_eq!(wrong(&paid, &[entry(&paid, 99, 0)]), 1);
        assert_eq!(wrong(&paid, &[entry(&paid, 100, 1)]), 1);
        let twice = BookEntry {
            reference: format!("{}:2", paid.order),
            ..entry(&paid, 100, 0)
        };
        assert_eq!(wrong(&paid, &[entry(&paid, 100, 0), twice]), 2, "charged twice");
        for (status, charged, refunded) in [
            (S::Paid, 99, 0),
            (S::Paid, 200, 0),
            (S::Paid, 100, 100),
            (S::Refunded, 100, 99),
            (S::Failed, 100, 0),
        ] {
            let account = account(status, charged, refunded);
            let book = [entry(&account, charged, refunded)];
            assert_eq!(wrong(&account, &book), 1, "{status} {charged} {refunded}");
        }
        let mut foreign = account(S::Paid, 100, 0);
        foreign.foreign_currency = true;
        assert_eq!(wrong(&foreign, &[entry(&foreign, 100, 0)]), 1);
        let mut stray = account(S::Paid, 100, 0);
        stray.status = None;
        assert_eq!(wrong(&stray, &[entry(&stray, 100, 0)]), 1);
    }

    #[test]
    fn a_charge_of_nobody_is_a_difference_only_where_everybody_was_asked() {
        let nobody = account(OrderStatus::Paid, 100, 0);
        let book = [entry(&nobody, 100, 0)];
        assert_eq!(verify(&[], &book, true).differences.len(), 1);
        assert_eq!(verify(&[], &book, false).differences, []);
    }

    #[test]
    fn an_order_on_its_way_may_differ_for_a_moment_and_never_twice() {
        let open = account(OrderStatus::Processing, 0, 0);
        let found = verify(std::slice::from_ref(&open), &[entry(&open, 100, 0)], true);
        assert_eq!((found.differences.len(), found.on_their_way), (0, 1));
        let again = BookEntry {
            reference: format!("{}:2", open.order),
            ..entry(&open, 100, 0)
        };
        assert_eq!(wrong(&open, &[entry(&open, 100, 0), again]), 1);
    }

    #[test]
    fn a_sale_is_the_sum_of_its_orders() {
        let orders = [
            account(OrderStatus::Paid, 100, 40),
            account(OrderStatus::Refunded, 100, 100),
        ];
        let book: Vec<_> = orders
            .iter()
            .map(|order| entry(order, order.charged_minor, order.refunded_minor))
            .collect();
        let found = verify(&orders, &book, true);
        let [sum] = found.sales.as_slice() else {
            panic!("one sale: {:?}", found.sales)
        };
        assert_eq!(
            (sum.paid_orders, sum.charged_minor, sum.refunded_minor),
            (1, 200, 140)
        );
        assert_eq!((sum.captured_minor, sum.provider_refunded_minor), (200, 140));
        assert_eq!((found.orders, found.movements), (2, 4));
    }
}
