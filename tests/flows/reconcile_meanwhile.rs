//! What moves just while reconciling looks at it is no difference. Each of these stops a look at a certain step, moves something, and lets it go on.

use std::time::Duration;

use futures_util::future::join;
use redis::AsyncCommands;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use crate::reconcile::{reconcile, rows, setup};
use crate::support::{Bed, eventually, redis_connection};

/// A sale of ten with one order of two, whose charge is declined, and not answered. The engine is gone.
async fn scene(bed: &mut Bed) -> (String, String) {
    let sale = bed.sale(10).await;
    bed.behave(0, 0, 100).await;
    bed.fault(serde_json::json!({"mode": "hang"})).await;
    let order = bed.order(&sale, "ann", 2).await;
    bed.wait_for_status(&order, "ann", "processing").await;
    bed.engines.remove(0).kill().await;
    // Older than any transaction, so that nothing but what is tried here excuses it.
    let mut redis = redis_connection().await;
    let held = format!("{{sale:{sale}}}:held");
    let value: String = redis.hget(&held, &order).await.unwrap();
    let parts: Vec<&str> = value.splitn(3, ':').collect();
    let an_hour_ago = jiff::Timestamp::now().as_microsecond() - 3_600_000_000;
    let value = format!("{}:{an_hour_ago}:{}", parts[0], parts[2]);
    let () = redis.hset(&held, &order, value).await.unwrap();
    (sale, order)
}

/// Reconciles, and stops where the orders of reservations that were read in the gate are looked up in Postgres: there `meanwhile` happens.
async fn reconcile_meanwhile(
    bed: &Bed,
    sale: &str,
    meanwhile: impl AsyncFnOnce(&mut Transaction<'_, Postgres>),
) -> (i32, Value) {
    let mut tx = bed.db.begin().await.unwrap();
    sqlx::query("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *tx)
        .await
        .unwrap();
    let act = async {
        eventually("it has read the gate", || async {
            sqlx::query_scalar::<_, i64>(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                 AND query LIKE '%AS r (id) JOIN orders%'",
            )
            .fetch_one(&bed.db)
            .await
            .unwrap()
                == 1
        })
        .await;
        meanwhile(&mut tx).await;
        tx.commit().await.unwrap();
    };
    join(reconcile(bed, &["--sale", sale]), act).await.0
}

/// The order fails, as the engine would have it, with the note of its release.
async fn fail(tx: &mut Transaction<'_, Postgres>, sale: &str, order: &str) {
    sqlx::raw_sql(AssertSqlSafe(format!(
        "UPDATE orders SET status = 'FAILED', failure_reason = 'declined', updated_at = clock_timestamp() WHERE id = '{order}';
         UPDATE payments SET status = 'DECLINED' WHERE order_id = '{order}';
         INSERT INTO stock_entries (sale_id, order_id, kind, delta) VALUES ('{sale}', '{order}', 'RELEASE', 2);
         INSERT INTO gate_releases (sale_id, order_id, forget) VALUES ('{sale}', '{order}', false);
         UPDATE inventory SET available = available + 2, held = held - 2 WHERE sale_id = '{sale}'"
    )))
    .execute(&mut **tx)
    .await
    .unwrap();
}

fn assert_nothing_is_told(code: i32, said: &Value) {
    assert_eq!((code, rows(said).len()), (0, 0), "{said:#}");
    assert!(said["in_flight"].as_u64().unwrap() > 0, "{said:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_moves_under_the_comparison_is_in_flight() {
    let mut bed = setup().start().await;
    let (sale, order) = scene(&mut bed).await;
    let (code, said) = reconcile_meanwhile(&bed, &sale, async |tx| fail(tx, &sale, &order).await).await;
    assert_nothing_is_told(code, &said);
    assert_eq!(bed.gate_available(&sale).await, Some(8), "nobody has told it");
}

/// The reservation was read, then the order fails, the gate is told, and the note is gone before Postgres is asked about it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_is_released_between_two_questions_is_no_difference() {
    let mut bed = setup().start().await;
    let (sale, order) = scene(&mut bed).await;
    let state = format!("{{sale:{sale}}}:state");
    let moving = async {
        let mut redis = redis_connection().await;
        loop {
            let () = redis.hincr(&state, "changes", 1).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let looking = reconcile_meanwhile(&bed, &sale, async |tx| {
        fail(tx, &sale, &order).await;
        sqlx::query("DELETE FROM gate_releases")
            .execute(&mut **tx)
            .await
            .unwrap();
        let mut redis = redis_connection().await;
        let () = redis.hdel(format!("{{sale:{sale}}}:held"), &order).await.unwrap();
        let () = redis.hincr(&state, "available", 2).await.unwrap();
    });
    let (code, said) = tokio::select! {
        said = looking => said,
        () = moving => unreachable!("it goes on"),
    };
    assert_nothing_is_told(code, &said);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_is_being_raised_is_in_flight() {
    let mut bed = setup().start().await;
    let (sale, _) = scene(&mut bed).await;
    let raise = || async {
        sqlx::query("UPDATE inventory SET epoch = epoch + 1 WHERE sale_id = $1::uuid")
            .bind(&sale)
            .execute(&bed.db)
            .await
            .unwrap();
    };
    raise().await;
    let rising = async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            raise().await;
        }
    };
    let args = ["--sale", &sale];
    let (code, said) = tokio::select! {
        said = reconcile(&bed, &args) => said,
        () = rising => unreachable!("it goes on"),
    };
    assert_nothing_is_told(code, &said);
    // Now that it stands still, it is told.
    let (code, said) = reconcile(&bed, &["--sale", &sale]).await;
    assert_eq!(
        (code, &rows(&said)[0]["kind"]),
        (0, &"gate_epoch".into()),
        "{said:#}"
    );
}
