//! Reconciling: whatever is different between Postgres, the gate and the provider's book is found, told, and repaired where that is safe.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Output;
use std::time::Duration;

use fluxbuy::domain::reconcile::Kind;
use futures_util::future::join_all;
use redis::AsyncCommands;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uuid::Uuid;

use crate::support::{Bed, Setup, eventually, fluxbuy, redis_connection};

/// What `fluxbuy reconcile` with these arguments prints, on the bed's services, and how it ends.
async fn reconcile_with(bed: &Bed, args: &[&str], settings: &[(&str, &str)]) -> Output {
    tokio::process::Command::new(fluxbuy())
        .arg("reconcile")
        .args(args)
        .envs(bed.settings.iter().cloned())
        .envs(settings.iter().copied())
        .output()
        .await
        .unwrap()
}

/// The same as JSON.
async fn reconcile(bed: &Bed, args: &[&str]) -> (i32, Value) {
    let out = reconcile_with(bed, &[&["--json"], args].concat(), &[]).await;
    let said = serde_json::from_slice(&out.stdout);
    let said = said.unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&out.stderr)));
    (out.status.code().unwrap(), said)
}

fn rows(said: &Value) -> &Vec<Value> {
    said["differences"].as_array().unwrap()
}

/// The results of the differences of this kind in this sale.
fn results<'a>(said: &'a Value, kind: Kind, sale: &str) -> Vec<&'a str> {
    rows(said)
        .iter()
        .filter(|row| row["kind"] == kind.as_str() && (row["sale"] == sale || row["sale"].is_null()))
        .map(|row| row["result"].as_str().unwrap())
        .collect()
}

/// A sale with an order of each sort.
struct Scene {
    sale: String,
    /// Of p0 to p3, a unit each.
    paid: Vec<String>,
    /// Of `lost`, declined.
    failed: String,
    /// Of `open`, being charged.
    open: String,
}

impl Scene {
    fn key(&self, what: &str) -> String {
        format!("{{sale:{}}}:{what}", self.sale)
    }
}

/// So many sales like that. The engine is gone afterwards.
async fn scenes(bed: &mut Bed, count: usize) -> Vec<Scene> {
    let mut scenes = Vec::new();
    for _ in 0..count {
        let sale = bed.list(20, json!({"per_buyer_limit": 5})).await;
        bed.behave(0, 0, 0).await;
        let mut paid = Vec::new();
        for n in 0..4 {
            paid.push(bed.order(&sale, &format!("p{n}"), 1).await);
        }
        bed.settled(&sale).await;
        bed.behave(0, 0, 100).await;
        let failed = bed.order(&sale, "lost", 1).await;
        bed.wait_for_status(&failed, "lost", "failed").await;
        eventually("the gate knows", || async {
            bed.gate_available(&sale).await == Some(16)
        })
        .await;
        scenes.push(Scene {
            sale,
            paid,
            failed,
            open: String::new(),
        });
    }
    bed.behave(0, 0, 0).await;
    bed.fault(json!({"mode": "hang"})).await;
    for scene in &mut scenes {
        scene.open = bed.order(&scene.sale, "open", 1).await;
        bed.wait_for_status(&scene.open, "open", "processing").await;
    }
    eventually("no release is noted", || async {
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM gate_releases")
            .fetch_one(&bed.db)
            .await
            .unwrap()
            == 0
    })
    .await;
    bed.engines.remove(0).kill().await;
    scenes
}

fn setup() -> Setup {
    Setup::default()
        // The reaper and the sweeper are not what is tried here.
        .set("sweeper.reaper_period_ms", 3_600_000)
        .set("sweeper.cutoff_ms", 600_000)
        .set("sweeper.reaper_grace_ms", 6_000)
}

/// Runs statements as the owner; `{sale}` and the like stand for the scene's.
async fn sql(bed: &Bed, scene: &Scene, statements: &str) {
    let text = statements
        .replace("{sale}", &scene.sale)
        .replace("{paid}", &scene.paid[0])
        .replace("{failed}", &scene.failed)
        .replace("{open}", &scene.open);
    sqlx::raw_sql(AssertSqlSafe(text)).execute(&bed.db).await.unwrap();
}

async fn charge(bed: &Bed, reference: &str, capture: bool) {
    bed.fault(json!({"mode": "none"})).await;
    let body = json!({"reference": reference, "amount_minor": 1000, "currency": "EUR", "capture": capture});
    let url = format!("{}/charges", bed.provider_url);
    assert_eq!(bed.client.post(&url, &[], &body).await.status, 200);
    bed.fault(json!({"mode": "hang"})).await;
}

/// Puts a reservation into the gate as an hour ago it would have been.
async fn reserve(scene: &Scene, order: &str, buyer: &str) {
    let mut redis = redis_connection().await;
    let an_hour_ago = jiff::Timestamp::now().as_microsecond() - 3_600_000_000;
    let held = format!("1:{an_hour_ago}:{}:{buyer}", Uuid::new_v4().simple());
    let () = redis.hset(scene.key("held"), order, held).await.unwrap();
    let () = redis.hincr(scene.key("state"), "available", -1).await.unwrap();
    let () = redis.hincr(scene.key("buyers"), buyer, 1).await.unwrap();
}

/// Makes a difference of this kind in this scene, by hand. (Some make others as well: a counter that is wrong is wrong in several ways.)
async fn stage(bed: &Bed, scene: &Scene, kind: Kind) {
    let mut redis = redis_connection().await;
    match kind {
        Kind::HeldUnits => {
            sql(
                bed,
                scene,
                "UPDATE inventory SET held = held + 1, available = available - 1 WHERE sale_id = '{sale}'",
            )
            .await;
        }
        Kind::SoldUnits => {
            sql(
                bed,
                scene,
                "UPDATE inventory SET sold = sold + 1, available = available - 1 WHERE sale_id = '{sale}'",
            )
            .await;
        }
        Kind::StockEntries => {
            sql(
                bed,
                scene,
                "UPDATE stock_entries SET delta = delta + 1 WHERE sale_id = '{sale}' AND kind = 'LIST'",
            )
            .await;
        }
        Kind::Allotment => {
            sql(
                bed,
                scene,
                "UPDATE buyer_allotments SET used = used + 1 WHERE sale_id = '{sale}' AND buyer = 'p0'",
            )
            .await;
        }
        Kind::ReleaseEntry => {
            sql(
                bed,
                scene,
                "DELETE FROM stock_entries WHERE order_id = '{failed}' AND kind = 'RELEASE'",
            )
            .await;
        }
        Kind::ReleaseNote => {
            // Of tomorrow, so that no sweeper carries it out.
            sql(bed, scene, "INSERT INTO gate_releases (sale_id, order_id, forget, created_at) VALUES ('{sale}', '{paid}', false, now() + interval '1 day')").await;
        }
        Kind::PaymentStatus => {
            sql(
                bed,
                scene,
                "UPDATE payments SET status = 'DECLINED' WHERE order_id = '{open}'",
            )
            .await;
        }
        Kind::Ledger => sql(bed, scene, "DELETE FROM ledger_entries WHERE order_id = '{paid}'").await,
        Kind::RefundPromise => {
            sql(
                bed,
                scene,
                "UPDATE payments SET refunded_minor = 1 WHERE order_id = '{paid}'",
            )
            .await;
        }
        Kind::RefundWork => {
            sql(bed, scene, "UPDATE payments SET refunded_minor = 100 WHERE order_id = '{paid}';
                INSERT INTO refunds (order_id, sale_id, attempt, number, amount_minor, return_units, reason, idempotency_digest)
                VALUES ('{paid}', '{sale}', 1, 1, 100, false, 'requested', gen_random_uuid())").await;
        }
        Kind::UnresolvedPayment => {
            sql(
                bed,
                scene,
                "UPDATE payments SET status = 'IN_DOUBT' WHERE order_id = '{failed}'",
            )
            .await;
        }
        Kind::DeadLetter => {
            sql(bed, scene, "INSERT INTO dead_letters (order_id, sale_id, attempt, kind, tries, last_error) VALUES ('{failed}', '{sale}', 1, 'RESOLVE', 20, 'x')").await;
        }
        Kind::GateNotLoaded => {
            for key in ["state", "keys", "held", "buyers", "tombs"] {
                let () = redis.del(scene.key(key)).await.unwrap();
            }
        }
        Kind::GateEpoch => {
            let () = redis.hset(scene.key("state"), "epoch", 1).await.unwrap();
        }
        Kind::GateAvailable => {
            let () = redis.hincr(scene.key("state"), "available", 1).await.unwrap();
        }
        Kind::ReservationWithoutOrder => reserve(scene, &Uuid::now_v7().to_string(), "ann").await,
        Kind::ReservationOfOrderOver => reserve(scene, &scene.failed, "lost").await,
        Kind::OrderWithoutReservation => {
            let () = redis.hdel(scene.key("held"), &scene.paid[0]).await.unwrap();
        }
        Kind::BuyerUnits => {
            let () = redis.hincr(scene.key("buyers"), "p1", 1).await.unwrap();
        }
        Kind::UnknownCharge => charge(bed, &format!("{}:1", Uuid::now_v7()), true).await,
        Kind::ChargeOfNobody | Kind::AuthorisedForNobody => {
            sql(
                bed,
                scene,
                "INSERT INTO payments (order_id, sale_id, attempt, reference, amount_minor, currency, status)
                VALUES ('{paid}', '{sale}', 2, '{paid}:2', 1000, 'EUR', 'VOIDED')",
            )
            .await;
            charge(bed, &format!("{}:2", scene.paid[0]), kind == Kind::ChargeOfNobody).await;
        }
        Kind::MissingCharge => {
            // Money that the provider has never seen: another attempt counts.
            sql(bed, scene, "UPDATE ledger_entries SET attempt = 2 WHERE order_id = '{paid}';
                UPDATE payments SET attempt = 2 WHERE order_id = '{paid}'; UPDATE orders SET attempt = 2 WHERE id = '{paid}'").await;
        }
        Kind::BookAmount => {
            sql(bed, scene, "UPDATE payments SET refunded_minor = 10 WHERE order_id = '{paid}';
                INSERT INTO refunds (order_id, sale_id, attempt, number, amount_minor, return_units, reason, idempotency_digest, status, done_at)
                VALUES ('{paid}', '{sale}', 1, 1, 10, false, 'requested', gen_random_uuid(), 'DONE', now());
                INSERT INTO ledger_entries (order_id, sale_id, attempt, kind, refund, amount_minor, currency)
                VALUES ('{paid}', '{sale}', 1, 'REFUND', 1, 10, 'EUR')").await;
        }
        Kind::UnknownRefund => {
            let url = format!("{}/charges/{}:1/refunds", bed.provider_url, scene.paid[0]);
            let body = json!({"reference": "made in the console", "amount_minor": 10});
            assert_eq!(bed.client.post(&url, &[], &body).await.status, 200);
        }
    }
}

fn is_repaired(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ReleaseNote
            | Kind::RefundWork
            | Kind::UnresolvedPayment
            | Kind::GateNotLoaded
            | Kind::GateEpoch
            | Kind::GateAvailable
            | Kind::ReservationWithoutOrder
            | Kind::ReservationOfOrderOver
            | Kind::OrderWithoutReservation
            | Kind::BuyerUnits
            | Kind::ChargeOfNobody
            | Kind::AuthorisedForNobody
    )
}

/// All that a reconciliation could change, as text.
async fn dump(bed: &Bed, scenes: &[Scene]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'")
            .fetch_all(&bed.db)
            .await
            .unwrap();
    for table in tables {
        let rows: Option<String> = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT string_agg(t::text, E'\\n' ORDER BY t::text) FROM {table} t"
        )))
        .fetch_one(&bed.db)
        .await
        .unwrap();
        all.insert(table, rows.unwrap_or_default());
    }
    let mut redis = redis_connection().await;
    for scene in scenes {
        for what in ["state", "keys", "held", "buyers"] {
            let fields: BTreeMap<String, String> = redis.hgetall(scene.key(what)).await.unwrap();
            all.insert(scene.key(what), format!("{fields:?}"));
        }
        let tombs: Vec<String> = redis.zrange(scene.key("tombs"), 0, -1).await.unwrap();
        all.insert(scene.key("tombs"), format!("{tombs:?}"));
    }
    all.insert("book".to_owned(), bed.book().await.to_string());
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_difference_is_found_told_and_repaired_where_it_may_be() {
    let mut bed = setup().start().await;
    let scenes = scenes(&mut bed, Kind::ALL.len()).await;
    let (code, clean) = reconcile(&bed, &[]).await;
    assert_eq!((code, rows(&clean).len()), (0, 0), "{clean:#}");
    assert!(
        clean["in_flight"].as_u64().unwrap() >= scenes.len() as u64,
        "{clean:#}"
    );

    for (kind, scene) in Kind::ALL.iter().zip(&scenes) {
        stage(&bed, scene, *kind).await;
    }
    let before = dump(&bed, &scenes).await;
    let (code, dry) = reconcile(&bed, &["--dry-run"]).await;
    assert_eq!(code, 1);
    let after = dump(&bed, &scenes).await;
    for (what, rows) in &before {
        assert_eq!(rows, &after[what], "a dry run has changed {what}");
    }
    for (kind, scene) in Kind::ALL.iter().zip(&scenes) {
        let wanted = if is_repaired(*kind) {
            "would_repair"
        } else {
            "left"
        };
        let got = results(&dry, *kind, &scene.sale);
        assert!(got.contains(&wanted), "{kind}: {got:?} of {dry:#}");
    }
    // Nothing else is told: what another difference brings with it is listed here.
    let brings: &[(Kind, &[Kind])] = &[
        (Kind::HeldUnits, &[Kind::StockEntries, Kind::GateAvailable]),
        (Kind::SoldUnits, &[Kind::StockEntries, Kind::GateAvailable]),
        (Kind::ReleaseEntry, &[Kind::StockEntries]),
        (Kind::Ledger, &[Kind::ChargeOfNobody]),
        (Kind::OrderWithoutReservation, &[Kind::GateAvailable]),
        (Kind::MissingCharge, &[Kind::UnknownCharge]),
    ];
    for row in rows(&dry) {
        let Some(place) = scenes.iter().position(|scene| row["sale"] == scene.sale.as_str()) else {
            assert_eq!(row["kind"], "unknown_charge", "{row:#}");
            continue;
        };
        let staged = Kind::ALL[place];
        let others = brings
            .iter()
            .find(|(kind, _)| *kind == staged)
            .map_or(&[][..], |(_, others)| others);
        assert!(
            row["kind"] == staged.as_str() || others.iter().any(|other| row["kind"] == other.as_str()),
            "{staged} staged, and told was {row:#}"
        );
        assert!(
            row["what"].as_str().unwrap().contains(' ') && row["of"] != "",
            "{row:#}"
        );
    }

    let table = reconcile_with(&bed, &["--dry-run", "--sale", &scenes[0].sale], &[]).await;
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("held_units") && table.contains("needs a person"),
        "{table}"
    );
    let last = table.lines().last().unwrap();
    assert_eq!(last, "reconcile: 3 differences left", "{table}");

    let (code, first) = reconcile(&bed, &[]).await;
    assert_eq!(code, 1, "what needs a person is left");
    for (kind, scene) in Kind::ALL.iter().zip(&scenes) {
        let wanted = if is_repaired(*kind) { "repaired" } else { "left" };
        let got = results(&first, *kind, &scene.sale);
        assert!(got.contains(&wanted), "{kind}: {got:?} of {first:#}");
    }
    let (code, second) = reconcile(&bed, &[]).await;
    assert_eq!((code, &second["repaired"]), (1, &json!(0)), "{second:#}");
    let left: BTreeSet<&str> = rows(&second)
        .iter()
        .map(|row| row["kind"].as_str().unwrap())
        .collect();
    for kind in Kind::ALL {
        // A charge that the ledger has lost is told beside it, and is no repair.
        let told = left.contains(kind.as_str());
        assert_eq!(
            told,
            !is_repaired(*kind) || *kind == Kind::ChargeOfNobody,
            "{kind}: {second:#}"
        );
    }

    // What was written down is worked off by whichever engine comes next.
    bed.fault(json!({"mode": "none"})).await;
    bed.start_engine().await;
    eventually("no work is owed", || async {
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM provider_tasks")
            .fetch_one(&bed.db)
            .await
            .unwrap()
            == 0
    })
    .await;
    let book = bed.book().await;
    let of = |kind: Kind| &scenes[Kind::ALL.iter().position(|other| *other == kind).unwrap()].paid[0];
    let entry = |reference: String| {
        let charges = book["charges"].as_array().unwrap();
        charges
            .iter()
            .find(|charge| charge["reference"] == reference.as_str())
            .unwrap()
            .clone()
    };
    let nobody = entry(format!("{}:2", of(Kind::ChargeOfNobody)));
    assert_eq!(
        (&nobody["status"], &nobody["refunded_minor"]),
        (&json!("succeeded"), &json!(1000))
    );
    assert_eq!(
        entry(format!("{}:2", of(Kind::AuthorisedForNobody)))["status"],
        "voided"
    );
    assert_eq!(
        entry(format!("{}:1", of(Kind::RefundWork)))["refunded_minor"],
        100
    );
    for kind in [
        Kind::GateAvailable,
        Kind::ReservationWithoutOrder,
        Kind::BuyerUnits,
        Kind::ChargeOfNobody,
        Kind::RefundWork,
    ] {
        let place = Kind::ALL.iter().position(|other| *other == kind).unwrap();
        bed.settled_and_clean(&scenes[place].sale).await;
    }
}

impl Bed {
    /// Reconciling finds nothing in this sale, and everything adds up.
    async fn settled_and_clean(&self, sale: &str) {
        let (code, said) = reconcile(self, &["--sale", sale]).await;
        assert_eq!((code, rows(&said).len()), (0, 0), "{said:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engines_own_pass_finds_and_repairs_the_same() {
    let mut bed = setup().start().await;
    let scenes = scenes(&mut bed, Kind::ALL.len()).await;
    for (kind, scene) in Kind::ALL.iter().zip(&scenes) {
        stage(&bed, scene, *kind).await;
    }
    bed.set("reconcile.period_ms", "300");
    bed.set("reconcile.gap_period_ms", "100");
    bed.start_engine().await;
    for kind in Kind::ALL {
        let result = if is_repaired(*kind) { "repaired" } else { "left" };
        let labels = [format!("kind=\"{kind}\""), format!("result=\"{result}\"")];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        eventually(&format!("{kind} is {result}"), || async {
            bed.metric("fluxbuy_reconcile_differences_total", &labels).await > 0
        })
        .await;
    }
    assert!(bed.metric("fluxbuy_reconcile_differences_left", &[]).await > 0);
    assert!(
        bed.metric("fluxbuy_reconcile_last_pass_timestamp_seconds", &[])
            .await
            > 0
    );
    let log = bed.engines[0].log();
    assert!(
        log.contains("a difference") && log.contains("kind=held_units"),
        "{log}"
    );
    eventually("the gate is as it must be", || async {
        let (_, said) = reconcile(&bed, &["--dry-run"]).await;
        said["differences"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["result"] == "left")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_engine_at_a_time_makes_the_passes() {
    let mut bed = setup().set("reconcile.period_ms", 200).engines(2).start().await;
    bed.sale(1).await;
    let passes = |engine: usize| {
        let bed = &bed;
        async move {
            let name = "fluxbuy_reconcile_last_pass_timestamp_seconds";
            bed.engines[engine].metric(&bed.client, name, &[]).await
        }
    };
    eventually("one makes passes", || async {
        passes(0).await + passes(1).await > 0
    })
    .await;
    let leader = usize::from(passes(1).await > 0);
    let other = 1 - leader;
    assert_eq!(passes(other).await, 0);
    bed.engines.remove(leader).kill().await;
    eventually("the other takes over", || async {
        let name = "fluxbuy_reconcile_last_pass_timestamp_seconds";
        bed.engines[0].metric(&bed.client, name, &[]).await > 0
    })
    .await;
}

/// A crowd that buys, pays, is declined, cancels and is paid back, beside a command and a pass that look all the time.
#[tokio::test(flavor = "multi_thread")]
async fn under_a_crowd_nothing_is_found_nothing_is_broken_and_no_gap_flickers() {
    let bed = Setup::default()
        .engines(2)
        .latency_ms(0, 200)
        .decline_percent(20)
        .set("reconcile.period_ms", 300)
        .set("reconcile.gap_period_ms", 100)
        .start()
        .await;
    let sale = bed
        .list(2_000, json!({"per_buyer_limit": 3, "unit_price_minor": 100}))
        .await;
    let crowd = async {
        for wave in 0..30 {
            let buys = (0..60).map(|n| {
                let bed = &bed;
                let (sale, buyer) = (&sale, format!("b{}", (wave * 17 + n) % 700));
                async move {
                    let reply = bed.buy_at(n % 2, sale, &buyer, &format!("k{wave}"), 1).await;
                    if reply.status != 201 {
                        return;
                    }
                    let order = reply.json()["id"].as_str().unwrap().to_owned();
                    match n % 4 {
                        0 => drop(bed.cancel(&order, &buyer).await),
                        1 => {
                            eventually("it is decided", || async {
                                !matches!(
                                    bed.get_order(&order, &buyer).await["status"].as_str(),
                                    Some("pending" | "processing")
                                )
                            })
                            .await;
                            let url = format!("{}/v1/orders/{order}/refund", bed.url());
                            let ask = json!({"return_units": true});
                            bed.client.post(&url, &[("idempotency-key", "r")], &ask).await;
                        }
                        _ => {}
                    }
                }
            });
            join_all(buys).await;
        }
    };
    let mut crowd = std::pin::pin!(crowd);
    let mut looks = 0;
    let mut scrapes = 0;
    let look = async {
        loop {
            let (code, said) = reconcile(&bed, &[]).await;
            assert_eq!((code, rows(&said).len()), (0, 0), "{said:#}");
            looks += 1;
        }
    };
    let scrape = async {
        loop {
            for engine in &bed.engines {
                let text = bed
                    .client
                    .get(&format!("{}/metrics", engine.url), &[])
                    .await
                    .text();
                let gaps = text
                    .lines()
                    .filter(|line| line.starts_with("fluxbuy_conservation_gap_units{"));
                for gap in gaps {
                    assert!(gap.ends_with(" 0"), "{gap}");
                    scrapes += 1;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = &mut crowd => {}
        () = look => {}
        () = scrape => {}
    }
    assert!(looks > 2, "it looked {looks} times");
    assert!(scrapes > 50, "it scraped {scrapes} times");
    bed.settled(&sale).await;
    eventually("no work is owed", || async {
        bed.count("SELECT count(*) FROM provider_tasks WHERE sale_id = $1", &sale)
            .await
            == 0
    })
    .await;
    bed.audit(&sale).await;
    assert_eq!(bed.metric("fluxbuy_reconcile_differences_total", &[]).await, 0);
    bed.settled_and_clean(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_belong_to_nobody_show_on_the_gauge_and_only_while_they_do() {
    let bed = Setup::default()
        .set("reconcile.gap_period_ms", 100)
        .set("reconcile.period_ms", 3_600_000)
        .start()
        .await;
    let sale = bed.sale(10).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    let labels = [sale.as_str()];
    let gap = || bed.metric("fluxbuy_conservation_gap_units", &labels);
    eventually("the sale is shown", || async {
        let text = bed
            .client
            .get(&format!("{}/metrics", bed.url()), &[])
            .await
            .text();
        text.contains(&format!("fluxbuy_conservation_gap_units{{sale=\"{sale}\"}} 0"))
    })
    .await;
    let tamper = |by: i32| {
        let (bed, order) = (&bed, order.clone());
        async move {
            sqlx::query("UPDATE orders SET quantity = quantity + $2 WHERE id = $1::uuid")
                .bind(order)
                .bind(by)
                .execute(&bed.db)
                .await
                .unwrap();
        }
    };
    tamper(2).await;
    // Something moves, and so it is added up.
    bed.order(&sale, "bob", 1).await;
    eventually("the gap is seen", || async { gap().await == -2 }).await;
    tamper(-2).await;
    eventually("the gap is gone", || async { gap().await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_reconcilers_at_once_do_everything_once() {
    let mut bed = setup().start().await;
    let sale = bed.sale(60).await;
    let mut orders = Vec::new();
    for reply in bed.crowd(&sale, 30).await {
        orders.push(reply.json()["id"].as_str().unwrap().to_owned());
    }
    bed.settled(&sale).await;
    bed.engines.remove(0).kill().await;
    let scene = Scene {
        sale: sale.clone(),
        paid: orders.clone(),
        failed: String::new(),
        open: String::new(),
    };
    // Ten refunds without work, ten charges of nobody, ten reservations of nobody.
    for (n, order) in orders.iter().enumerate() {
        let of = Scene {
            sale: sale.clone(),
            paid: vec![order.clone()],
            failed: String::new(),
            open: String::new(),
        };
        match n % 3 {
            0 => stage(&bed, &of, Kind::RefundWork).await,
            1 => stage(&bed, &of, Kind::ChargeOfNobody).await,
            _ => reserve(&scene, &Uuid::now_v7().to_string(), "ann").await,
        }
    }
    bed.fault(json!({"mode": "none"})).await;
    let said = join_all((0..3).map(|_| reconcile(&bed, &[]))).await;
    assert!(said.iter().all(|(code, _)| *code == 0), "{said:#?}");
    assert_eq!(
        bed.count("SELECT count(*) FROM provider_tasks WHERE sale_id = $1", &sale)
            .await,
        20
    );
    assert_eq!(bed.gate_available(&sale).await, Some(30));
    // Two engines that pass all the time, and a command now and then, while the work is done.
    bed.set("reconcile.period_ms", "200");
    bed.start_engine().await;
    bed.start_engine().await;
    eventually("the work is done", || async {
        bed.count("SELECT count(*) FROM provider_tasks WHERE sale_id = $1", &sale)
            .await
            == 0
    })
    .await;
    bed.settled_and_clean(&sale).await;
    let refunds = bed.book().await["refunds"].as_array().unwrap().clone();
    let names: BTreeSet<&str> = refunds
        .iter()
        .map(|refund| refund["reference"].as_str().unwrap())
        .collect();
    assert_eq!((refunds.len(), names.len()), (20, 20), "each is paid once");
    let paid: i64 = refunds
        .iter()
        .map(|refund| refund["amount_minor"].as_i64().unwrap())
        .sum();
    assert_eq!(paid, 10 * 100 + 10 * 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_side_that_is_away_is_told_and_the_others_are_looked_at() {
    let mut bed = setup().start().await;
    let scenes = scenes(&mut bed, 2).await;
    stage(&bed, &scenes[0], Kind::GateAvailable).await;
    stage(&bed, &scenes[1], Kind::Ledger).await;
    let nowhere = [("FLUXBUY__PROVIDER__URL", "http://127.0.0.1:1")];
    let out = reconcile_with(&bed, &["--json", "--dry-run"], &nowhere).await;
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said:#}");
    assert_eq!(
        (&said["sides"]["postgres"], &said["sides"]["redis"]),
        (&json!("ok"), &json!("ok"))
    );
    assert_ne!(said["sides"]["provider"], "ok");
    assert_eq!(
        results(&said, Kind::GateAvailable, &scenes[0].sale),
        ["would_repair"]
    );
    assert_eq!(results(&said, Kind::Ledger, &scenes[1].sale), ["left"]);

    let nowhere = [("FLUXBUY__REDIS__URL", "redis://127.0.0.1:1")];
    let out = reconcile_with(&bed, &[], &nowhere).await;
    let said = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("redis could not be looked at") && said.contains("charge_of_nobody"),
        "{said}"
    );
    assert!(
        said.trim_end().ends_with("and redis could not be looked at"),
        "{said}"
    );

    // Between the two looks at its book the provider goes away.
    let once = book_once(&bed).await;
    let gone = [("FLUXBUY__PROVIDER__URL", once.as_str())];
    let out = reconcile_with(&bed, &["--json", "--dry-run"], &gone).await;
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said:#}");
    assert_eq!(results(&said, Kind::Ledger, &scenes[1].sale), ["left"]);
    assert_eq!(
        results(&said, Kind::ChargeOfNobody, &scenes[1].sale),
        [""; 0],
        "one look at the book is none"
    );

    let nowhere = [("FLUXBUY__POSTGRES__URL", "postgres://fluxbuy@127.0.0.1:1/fluxbuy")];
    let out = reconcile_with(&bed, &[], &nowhere).await;
    assert_eq!(out.status.code(), Some(2));
    let out = reconcile_with(&bed, &[], &[("FLUXBUY__NO__SETTING", "1")]).await;
    assert_eq!(
        out.status.code(),
        Some(2),
        "settings that are wrong are no finding"
    );
}

/// A provider that hands its book out once, and is gone.
async fn book_once(bed: &Bed) -> String {
    let book = bed.book().await.to_string();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(listener);
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut asked).await.unwrap();
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            book.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(book.as_bytes()).await.unwrap();
    });
    url
}

/// A database that was restored to an earlier time: the gate has an epoch that is still to come.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_ahead_of_its_database_is_loaded_above_it() {
    let mut bed = setup().start().await;
    let sale = bed.sale(5).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    bed.engines.remove(0).kill().await;
    let mut redis = redis_connection().await;
    let state = format!("{{sale:{sale}}}:state");
    let () = redis.hset(&state, "epoch", 40).await.unwrap();
    let (code, said) = reconcile(&bed, &[]).await;
    assert_eq!(
        (code, results(&said, Kind::GateEpoch, &sale)),
        (0, vec!["repaired"]),
        "{said:#}"
    );
    let epoch: i64 = redis.hget(&state, "epoch").await.unwrap();
    let here = "SELECT epoch FROM inventory WHERE sale_id = $1";
    assert_eq!((epoch, bed.count(here, &sale).await), (41, 41));
    bed.settled_and_clean(&sale).await;
    bed.start_engine().await;
    assert_eq!(bed.buy(&sale, "bob", "k", 4).await.status, 201);
    bed.settled(&sale).await;
    bed.audit(&sale).await;
}

/// The provider has paid a refund, the engine died before it heard of it, and the work is gone as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_a_crash_has_cut_is_written_down_again_and_paid_once() {
    let mut bed = setup().start().await;
    let sale = bed.sale(1).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    bed.fault(json!({"mode": "hang", "operations": ["refund"]})).await;
    let url = format!("{}/v1/orders/{order}/refund", bed.url());
    let reply = bed
        .client
        .post(&url, &[("idempotency-key", "k")], &json!({"return_units": true}))
        .await;
    assert_eq!(reply.status, 202);
    let paid_back = || async { bed.book().await["refunds"].as_array().unwrap().len() };
    eventually("the provider has paid it", || async { paid_back().await == 1 }).await;
    let (code, said) = reconcile(&bed, &[]).await;
    assert_eq!((code, rows(&said).len()), (0, 0), "it is in flight: {said:#}");
    bed.engines.remove(0).kill().await;
    sqlx::query("DELETE FROM provider_tasks")
        .execute(&bed.db)
        .await
        .unwrap();
    let (code, said) = reconcile(&bed, &[]).await;
    assert_eq!(
        (code, results(&said, Kind::RefundWork, &sale)),
        (0, vec!["repaired"]),
        "{said:#}"
    );
    bed.fault(json!({"mode": "none"})).await;
    bed.start_engine().await;
    bed.wait_for_status(&order, "ann", "refunded").await;
    assert_eq!(bed.book().await["refunds"].as_array().unwrap().len(), 1);
    bed.audit(&sale).await;
    bed.settled_and_clean(&sale).await;
}

/// Money for an order that failed, of which only the book tells, and whose webhook comes after reconciling has found it.
#[tokio::test(flavor = "multi_thread")]
async fn late_money_that_reconciling_finds_and_a_webhook_tells_of_goes_back_once() {
    const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";
    let mut bed = setup().set("webhooks.secrets", SECRET).start().await;
    let scene = scenes(&mut bed, 1).await.remove(0);
    stage(&bed, &scene, Kind::ChargeOfNobody).await;
    let reference = format!("{}:2", scene.paid[0]);
    let body = json!({"id": "evt_late", "type": "charge.succeeded", "reference": reference, "amount_minor": 1000, "currency": "EUR"}).to_string();
    let (code, said) = reconcile(&bed, &[]).await;
    assert_eq!(
        (code, results(&said, Kind::ChargeOfNobody, &scene.sale)),
        (0, vec!["repaired"]),
        "{said:#}"
    );
    bed.fault(json!({"mode": "none"})).await;
    bed.start_engine().await;
    let key = fluxbuy::signature::Key::parse(fluxbuy::signature::Scheme::Standard, SECRET).unwrap();
    let now = jiff::Timestamp::now().as_second();
    for _ in 0..3 {
        let headers = fluxbuy::signature::sign(
            fluxbuy::signature::Scheme::Standard,
            &key,
            "evt_late",
            now,
            body.as_bytes(),
        );
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let url = format!("{}/v1/webhooks/mock", bed.url());
        assert_eq!(bed.client.post_raw(&url, &headers, &body).await.status, 200);
    }
    eventually("it is back", || async {
        let book = bed.book().await;
        let charges = book["charges"].as_array().unwrap();
        charges
            .iter()
            .any(|charge| charge["reference"] == reference.as_str() && charge["refunded_minor"] == 1000)
    })
    .await;
    eventually("nothing is on its way", || async {
        bed.count(
            "SELECT (SELECT count(*) FROM provider_tasks WHERE sale_id = $1) + (SELECT count(*) FROM provider_events WHERE state = 'DUE')",
            &scene.sale,
        )
        .await
            == 0
    })
    .await;
    let late = "SELECT count(*) FROM ledger_entries WHERE sale_id = $1 AND attempt = 2";
    assert_eq!(bed.count(late, &scene.sale).await, 2, "a charge and a refund");
    let book = bed.book().await;
    assert_eq!(book["refunds"].as_array().unwrap().len(), 1);
    bed.settled_and_clean(&scene.sale).await;
}

/// Money that is different stays told when its order is older than what passes look at.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_is_told_until_it_is_gone_however_old_it_gets() {
    let bed = setup()
        .set("reconcile.period_ms", 200)
        .set("reconcile.lookback_ms", 3_000)
        .start()
        .await;
    let sale = bed.sale(2).await;
    let order = bed.order(&sale, "ann", 1).await;
    bed.wait_for_status(&order, "ann", "paid").await;
    let refund = json!({"reference": "made in the console", "amount_minor": 10});
    let url = format!("{}/charges/{order}:1/refunds", bed.provider_url);
    assert_eq!(bed.client.post(&url, &[], &refund).await.status, 200);
    let left = || bed.metric("fluxbuy_reconcile_differences_left", &[]);
    let told = || {
        bed.metric(
            "fluxbuy_reconcile_differences_total",
            &["kind=\"unknown_refund\""],
        )
    };
    eventually("it is told", || async { left().await == 1 }).await;
    let age =
        "SELECT extract(epoch FROM clock_timestamp() - created_at)::bigint FROM orders WHERE sale_id = $1";
    eventually("it is older than passes look back", || async {
        bed.count(age, &sale).await > 4
    })
    .await;
    let before = told().await;
    eventually("passes tell of it still", || async { told().await > before + 3 }).await;
    assert_eq!(left().await, 1);
    // A person enters it.
    sqlx::raw_sql(AssertSqlSafe(format!(
        "UPDATE payments SET refunded_minor = 10 WHERE order_id = '{order}';
         INSERT INTO refunds (order_id, sale_id, attempt, number, amount_minor, return_units, reason, idempotency_digest, status, done_at)
         VALUES ('{order}', '{sale}', 1, 1, 10, false, 'requested', gen_random_uuid(), 'DONE', now());
         INSERT INTO ledger_entries (order_id, sale_id, attempt, kind, refund, amount_minor, currency)
         VALUES ('{order}', '{sale}', 1, 'REFUND', 1, 10, 'EUR')"
    )))
    .execute(&bed.db)
    .await
    .unwrap();
    eventually("it is gone", || async { left().await == 0 }).await;
}

/// A Redis that has gone back in time, with many sales: few are loaded at a time.
#[tokio::test(flavor = "multi_thread")]
async fn few_sales_are_loaded_anew_at_a_time() {
    let bed = Setup::default()
        .direct()
        .set("postgres.statement_timeout_ms", 30_000)
        .set("sweeper.reaper_grace_ms", 60_000)
        .start()
        .await;
    let mut sales = Vec::new();
    for _ in 0..8 {
        sales.push(bed.sale(10).await);
    }
    // Whoever loads a sale waits for its row.
    let mut rows = bed.db.begin().await.unwrap();
    sqlx::query("SELECT FROM inventory FOR UPDATE")
        .execute(&mut *rows)
        .await
        .unwrap();
    let mut redis = redis_connection().await;
    for sale in &sales {
        let () = redis
            .hincr(format!("{{sale:{sale}}}:state"), "available", -3)
            .await
            .unwrap();
    }
    let loading = || async {
        sqlx::query_scalar::<_, i64>(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
             AND query LIKE 'UPDATE inventory SET epoch%'",
        )
        .fetch_one(&bed.db)
        .await
        .unwrap()
    };
    eventually("two are being loaded", || async { loading().await == 2 }).await;
    for _ in 0..30 {
        assert_eq!(loading().await, 2);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    rows.rollback().await.unwrap();
    for sale in &sales {
        eventually("all are loaded in the end", || async {
            bed.gate_available(sale).await == Some(10)
        })
        .await;
    }
    assert_eq!(bed.metric("fluxbuy_gate_rebuilds_total", &["apart"]).await, 8);
}
