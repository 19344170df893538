//! Orders by the million, made by SQL as the owner: as they would be there after days of selling, without the days.
//!
//! Sales are listed by the engine, so that all but the orders is as it makes it; stock row and stock entries are brought to what the
//! orders say. Constraints and indexes are taken off meanwhile, and put back as the catalog described them.

use std::time::Duration;

use anyhow::ensure;
use futures_util::future::try_join;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use super::stand::{self, Stand};
use crate::world::World;

/// Tables that are filled.
const TABLES: [&str; 2] = ["orders", "stock_entries"];
/// For building indexes; the server has nothing else to do.
const SETTINGS: &str = "SET maintenance_work_mem = '1GB'; SET statement_timeout = 0";

/// Orders of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fill {
    /// PENDING or PAID.
    pub(super) status: &'static str,
    /// How many, of one unit each. Divided among the sales in the order of their time.
    pub(super) orders: u32,
    /// Sales that they belong to.
    pub(super) sales: u32,
    /// How long ago the first was made.
    pub(super) since: Duration,
    /// How long ago the last was.
    pub(super) until: Duration,
    /// Units of each sale that nobody has bought.
    pub(super) spare_units: u32,
}

impl Fill {
    fn per_sale(&self) -> u32 {
        self.orders.div_ceil(self.sales)
    }
}

/// A definition in the catalog.
#[derive(Debug, sqlx::FromRow)]
struct Definition {
    take_off: String,
    put_back: String,
}

/// Stops the engine, and fills the tables. Tells the sales, of which the gate knows nothing.
///
/// # Errors
/// When there are orders already, or the database refuses something.
pub(super) async fn fill(world: &mut World, fills: &[Fill]) -> anyhow::Result<Vec<Stand>> {
    let mut streets = Vec::new();
    for fill in fills {
        let units = fill.per_sale() + fill.spare_units;
        let name = format!("filled with {}", fill.status);
        streets.push(stand::list_many(world, &name, units, fill.sales).await?);
    }
    world.stop_engine().await?;
    let url = &world.target().postgres_url;
    let mut orders = PgConnection::connect(url).await?;
    let mut entries = PgConnection::connect(url).await?;
    for connection in [&mut orders, &mut entries] {
        connection.execute(SETTINGS).await?;
    }
    // One time for both connections: ids are made of it.
    let (found, now_us): (i64, i64) =
        sqlx::query_as("SELECT (SELECT count(*) FROM orders), micros(clock_timestamp())")
            .fetch_one(&mut orders)
            .await?;
    ensure!(found == 0, "there are {found} orders already");

    let taken_off = [
        take_off(&mut orders, TABLES[0]).await?,
        take_off(&mut entries, TABLES[1]).await?,
    ];
    let mut first = 0_u32;
    for (fill, stands) in fills.iter().zip(&streets) {
        let sales: Vec<Uuid> = stands.iter().map(|stand| stand.sale).collect();
        try_join(
            insert_orders(&mut orders, fill, first, now_us, &sales),
            insert_entries(&mut entries, fill, first, now_us, &sales),
        )
        .await?;
        move_stock(&mut orders, fill, &sales).await?;
        first += fill.orders;
    }
    let [of_orders, of_entries] = &taken_off;
    try_join(
        put_back(&mut orders, TABLES[0], of_orders),
        put_back(&mut entries, TABLES[1], of_entries),
    )
    .await?;
    orders.close().await?;
    entries.close().await?;
    let stands: Vec<Stand> = streets.into_iter().flatten().collect();
    forget(world, &stands).await?;
    Ok(stands)
}

/// The gate still has the sales as they were listed. It would be found to be apart from the database, and each of them be loaded anew
/// while something is measured.
async fn forget(world: &World, stands: &[Stand]) -> anyhow::Result<()> {
    let mut gate = redis::pipe();
    for stand in stands {
        gate.cmd("UNLINK").arg(World::gate_key(stand.sale)).ignore();
    }
    let () = gate.query_async(&mut world.redis().await?).await?;
    Ok(())
}

async fn take_off(connection: &mut PgConnection, table: &str) -> anyhow::Result<Vec<Definition>> {
    let definitions: Vec<Definition> = sqlx::query_as(
        "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) AS take_off,
                format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
                    AS put_back
         FROM pg_constraint WHERE conrelid = $1::regclass AND contype IN ('p', 'u')
         UNION ALL
         SELECT format('DROP INDEX %s', indexrelid::regclass), pg_get_indexdef(indexrelid)
         FROM pg_index i WHERE indrelid = $1::regclass
            AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)",
    )
    .bind(table)
    .fetch_all(&mut *connection)
    .await?;
    for definition in &definitions {
        connection
            .execute(AssertSqlSafe(definition.take_off.as_str()))
            .await?;
    }
    Ok(definitions)
}

async fn put_back(
    connection: &mut PgConnection,
    table: &str,
    definitions: &[Definition],
) -> anyhow::Result<()> {
    for definition in definitions {
        connection
            .execute(AssertSqlSafe(definition.put_back.as_str()))
            .await?;
    }
    // As autovacuum would have left them long ago.
    let vacuum = format!("VACUUM (ANALYZE) {table}");
    connection.execute(AssertSqlSafe(vacuum)).await?;
    Ok(())
}

/// Each order's number n, its sale, when it was made (microseconds since 1970), and its id: a UUIDv7 whose random part is the hash
/// of its number, so that its stock entry can name it. $1 to $6: first, last, sales, orders per sale, when the first and the last were made.
const NUMBERED: &str = "SELECT n, ($3::uuid[])[1 + (n - $1) / $4] AS sale_id, us,
        overlay(overlay(md5(n::text) PLACING lpad(to_hex(us / 1000), 12, '0') || '7' FROM 1) PLACING '8' FROM 17)::uuid AS id
     FROM (
        SELECT n, $5 + (($6 - $5) * (n - $1)::numeric / ($2 - $1 + 1))::bigint AS us
        FROM generate_series($1::bigint, $2::bigint) AS n
     ) AS made";

async fn insert_orders(
    connection: &mut PgConnection,
    fill: &Fill,
    first: u32,
    now_us: i64,
    sales: &[Uuid],
) -> anyhow::Result<()> {
    let claims = i32::from(fill.status != "PENDING");
    let sql = format!(
        "INSERT INTO orders (id, sale_id, idempotency_digest, amount_minor, created_at, updated_at, claimed_at,
            quantity, attempt, fence, status, buyer)
         SELECT id, sale_id, md5('digest ' || n)::uuid, $7, from_micros(us), from_micros(us),
            CASE WHEN $8 > 0 THEN from_micros(us) END, 1, $8, $8, $9::order_status, 'filled-' || n % 100000
         FROM ({NUMBERED}) AS numbered"
    );
    bind_numbered(&sql, fill, first, now_us, sales)
        .bind(crate::scenarios::UNIT_PRICE_MINOR)
        .bind(claims)
        .bind(fill.status)
        .execute(connection)
        .await?;
    Ok(())
}

async fn insert_entries(
    connection: &mut PgConnection,
    fill: &Fill,
    first: u32,
    now_us: i64,
    sales: &[Uuid],
) -> anyhow::Result<()> {
    let sql = format!(
        "INSERT INTO stock_entries (sale_id, order_id, kind, delta, created_at)
         SELECT sale_id, id, 'RESERVE', -1, from_micros(us) FROM ({NUMBERED}) AS numbered"
    );
    bind_numbered(&sql, fill, first, now_us, sales)
        .execute(connection)
        .await?;
    Ok(())
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

fn bind_numbered<'q>(sql: &'q str, fill: &Fill, first: u32, now_us: i64, sales: &'q [Uuid]) -> Query<'q> {
    sqlx::query(AssertSqlSafe(sql))
        .bind(i64::from(first))
        .bind(i64::from(first) + i64::from(fill.orders) - 1)
        .bind(sales)
        .bind(i64::from(fill.per_sale()))
        .bind(now_us - fill.since.as_micros() as i64)
        .bind(now_us - fill.until.as_micros() as i64)
}

/// Takes the orders' units from the stock.
async fn move_stock(connection: &mut PgConnection, fill: &Fill, sales: &[Uuid]) -> anyhow::Result<()> {
    sqlx::query(
        "UPDATE inventory i SET available = available - taken.units,
            held = held + CASE WHEN $2 = 'PENDING' THEN taken.units ELSE 0 END,
            sold = sold + CASE WHEN $2 = 'PAID' THEN taken.units ELSE 0 END
         FROM (SELECT sale_id, -sum(delta) AS units FROM stock_entries
            WHERE sale_id = ANY($1) AND kind = 'RESERVE' GROUP BY sale_id) AS taken
         WHERE i.sale_id = taken.sale_id",
    )
    .bind(sales)
    .bind(fill.status)
    .execute(connection)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_has_a_sale() {
        let fill = |orders, sales| Fill {
            status: "PAID",
            orders,
            sales,
            since: Duration::from_secs(2),
            until: Duration::from_secs(1),
            spare_units: 0,
        };
        assert_eq!(fill(100, 10).per_sale(), 10);
        assert_eq!(fill(101, 10).per_sale(), 11);
        let uneven = fill(7, 3);
        assert!((0..7).all(|n| n / uneven.per_sale() < 3));
    }
}
