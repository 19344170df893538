//! The walls in the database: they hold against the engine's own role, whatever its code does.

use fluxbuy::domain::{Event, OrderStatus, transition};
use fluxbuy::store::migrate;
use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;

use crate::support::{fresh_database, pool};

struct Walls {
    owner: PgPool,
    engine: PgPool,
    sale: Uuid,
}

impl Walls {
    async fn build() -> Self {
        let urls = fresh_database().await;
        let (owner, engine) = (pool(&urls.owner_url).await, pool(&urls.engine_url).await);
        let sale = Uuid::now_v7();
        sqlx::query(
            "INSERT INTO sales (id, name, unit_price_minor, currency, max_per_order, opens_at) VALUES ($1, 'x', 1, 'EUR', 10, now())",
        )
        .bind(sale)
        .execute(&owner)
        .await
        .unwrap();
        sqlx::query("INSERT INTO inventory (sale_id, quantity, available, held) VALUES ($1, 10, 9, 1)")
            .bind(sale)
            .execute(&owner)
            .await
            .unwrap();
        Self { owner, engine, sale }
    }

    async fn order(&self, status: OrderStatus) -> Uuid {
        let id = Uuid::now_v7();
        sqlx::query(AssertSqlSafe(format!(
            "INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, quantity, buyer, status, failure_reason)
             VALUES ($1, $2, {}, 1, 1, 'ann', '{}', {})",
            if status == OrderStatus::Rejected { "NULL" } else { "gen_random_uuid()" },
            status.as_sql(),
            if status == OrderStatus::Failed { "'swept'" } else { "NULL" },
        )))
        .bind(id)
        .bind(self.sale)
        .execute(&self.owner)
        .await
        .unwrap();
        id
    }

    /// Runs a statement as the engine; gives the constraint or SQLSTATE that refused it.
    async fn refused(&self, statement: &str) -> String {
        match sqlx::query(AssertSqlSafe(statement.to_owned()))
            .execute(&self.engine)
            .await
        {
            Ok(done) => panic!("not refused, {} rows: {statement}", done.rows_affected()),
            Err(sqlx::Error::Database(error)) => error
                .constraint()
                .map_or_else(|| error.code().unwrap_or_default().into_owned(), str::to_owned),
            Err(error) => panic!("{error}: {statement}"),
        }
    }
}

const INSUFFICIENT_PRIVILEGE: &str = "42501";

#[tokio::test(flavor = "multi_thread")]
async fn s20_stock_can_not_leave_its_bounds() {
    let walls = Walls::build().await;
    for (statement, wall) in [
        (
            "UPDATE inventory SET available = -1, held = 11",
            "inventory_available_in_range",
        ),
        (
            "UPDATE inventory SET available = 11, held = -1",
            "inventory_available_in_range",
        ),
        (
            "UPDATE inventory SET available = 10, held = -1, sold = 1",
            "inventory_held_not_negative",
        ),
        (
            "UPDATE inventory SET held = 2, sold = -1",
            "inventory_sold_not_negative",
        ),
        (
            "UPDATE inventory SET available = available + 1",
            "inventory_conserved",
        ),
        ("UPDATE inventory SET held = held + 1", "inventory_conserved"),
        ("UPDATE inventory SET sold = sold + 1", "inventory_conserved"),
    ] {
        assert_eq!(walls.refused(statement).await, wall, "{statement}");
    }
    assert_eq!(
        walls.refused("DELETE FROM inventory").await,
        INSUFFICIENT_PRIVILEGE
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s20_entries_once_written_stay() {
    let walls = Walls::build().await;
    for table in ["stock_entries", "ledger_entries"] {
        let change = format!("UPDATE {table} SET created_at = now()");
        assert_eq!(walls.refused(&change).await, INSUFFICIENT_PRIVILEGE);
        assert_eq!(
            walls.refused(&format!("DELETE FROM {table}")).await,
            INSUFFICIENT_PRIVILEGE
        );
        assert_eq!(
            walls.refused(&format!("TRUNCATE {table}")).await,
            INSUFFICIENT_PRIVILEGE
        );
    }
    assert_eq!(walls.refused("DELETE FROM orders").await, INSUFFICIENT_PRIVILEGE);
    assert_eq!(
        walls.refused("ALTER TABLE orders DISABLE TRIGGER ALL").await,
        INSUFFICIENT_PRIVILEGE
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn s20_units_are_released_and_money_is_recorded_once() {
    let walls = Walls::build().await;
    let order = walls.order(OrderStatus::Failed).await;
    let (sale, once) = (
        walls.sale,
        format!(
            "INSERT INTO stock_entries (sale_id, order_id, kind, delta) VALUES ('{}', '{order}', 'RELEASE', 1)",
            walls.sale
        ),
    );
    sqlx::query(AssertSqlSafe(once.clone()))
        .execute(&walls.engine)
        .await
        .unwrap();
    assert_eq!(walls.refused(&once).await, "stock_entries_one_release");

    let once = format!(
        "INSERT INTO ledger_entries (order_id, sale_id, attempt, kind, amount_minor, currency) VALUES ('{order}', '{sale}', 1, 'CHARGE', 1, 'EUR')"
    );
    sqlx::query(AssertSqlSafe(once.clone()))
        .execute(&walls.engine)
        .await
        .unwrap();
    assert_eq!(walls.refused(&once).await, "ledger_entries_once");

    let event = |attempt: i32| {
        format!(
            "INSERT INTO ledger_entries (order_id, sale_id, attempt, kind, amount_minor, currency, provider_event_id)
             VALUES ('{order}', '{sale}', {attempt}, 'CHARGE', 1, 'EUR', 'evt_1')"
        )
    };
    sqlx::query(AssertSqlSafe(event(2)))
        .execute(&walls.engine)
        .await
        .unwrap();
    assert_eq!(walls.refused(&event(3)).await, "ledger_entries_one_per_event");
}

/// The trigger and the engine's own table say the same of every pair of statuses.
#[tokio::test(flavor = "multi_thread")]
async fn s20_the_database_knows_the_same_transitions_as_the_engine() {
    let walls = Walls::build().await;
    for from in OrderStatus::ALL {
        for to in OrderStatus::ALL {
            // Late money is an event that leaves a failed order failed: no update of the status at all.
            let legal = Event::ALL
                .into_iter()
                .filter_map(|event| transition(from, event).ok())
                .any(|t| t.to == to && from != OrderStatus::Failed);
            let order = walls.order(from).await;
            let update = format!(
                "UPDATE orders SET status = '{}', failure_reason = {}, idempotency_digest = {} WHERE id = '{order}'",
                to.as_sql(),
                if to == OrderStatus::Failed {
                    "'swept'"
                } else {
                    "NULL"
                },
                if to == OrderStatus::Rejected {
                    "NULL"
                } else {
                    "gen_random_uuid()"
                },
            );
            if legal {
                let done = sqlx::query(AssertSqlSafe(update))
                    .execute(&walls.engine)
                    .await
                    .unwrap();
                assert_eq!(done.rows_affected(), 1, "{from} to {to}");
            } else {
                assert_eq!(
                    walls.refused(&update).await,
                    "orders_legal_transition",
                    "{from} to {to}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_never_falls() {
    let walls = Walls::build().await;
    let order = walls.order(OrderStatus::Processing).await;
    sqlx::query("UPDATE orders SET fence = 5 WHERE id = $1")
        .bind(order)
        .execute(&walls.engine)
        .await
        .unwrap();
    assert_eq!(
        walls
            .refused(&format!("UPDATE orders SET fence = 4 WHERE id = '{order}'"))
            .await,
        "orders_fence_rises"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_can_be_run_again_and_by_several_at_once() {
    let urls = fresh_database().await;
    let runs = futures_util::future::join_all((0..4).map(|_| migrate::migrate(&urls.owner_url))).await;
    assert!(runs.iter().all(Result::is_ok), "{runs:?}");
}
