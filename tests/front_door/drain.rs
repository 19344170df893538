//! Closing the door.

use std::sync::Arc;
use std::time::Duration;

use fluxbuy::http::{DrainReport, Settings};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::*;

/// Waits until nobody listens there any more.
async fn refused(door: &Door) {
    let closing = async {
        while TcpStream::connect(door.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, closing)
        .await
        .expect("new connections are still taken");
}

#[tokio::test]
async fn requests_under_way_are_answered_and_new_ones_refused() {
    let mut door = Door::open(roomy()).await;
    let gate = Arc::new(Semaphore::new(0));
    door.fake.plan_purchase(Plan::Wait(gate.clone(), Ok(accepted())));
    let (mut buyer, mut idle, mut half) = (door.connect().await, door.connect().await, door.connect().await);
    assert_eq!(idle.ask(&get("/livez")).await.status, 200);
    // Half a head is the beginning of a request; whoever connects later and has an answer shows that it was read.
    half.send("GET /readyz HTTP/1.1\r\n").await;
    let mut served = door.connect().await;
    assert_eq!(served.ask(&get("/livez")).await.status, 200);
    buyer.send(purchase()).await;
    reached(&door.fake.begun, 1).await;

    door.begin_to_close();
    refused(&door).await;
    assert!(idle.is_closed().await);
    half.send("Host: shop\r\n\r\n").await;
    let ready = half.next().await.unwrap();
    assert_eq!((ready.status, &ready.json()["draining"]), (503, &true.into()));
    gate.add_permits(1);
    let answer = buyer.next().await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (201, Some("close")));
    assert!(buyer.is_closed().await);
    assert_eq!(
        door.closed().await,
        DrainReport {
            under_way: 1,
            cut: 0,
            unfinished: 0
        }
    );
}

#[tokio::test]
async fn what_takes_too_long_is_cut_and_reported() {
    let settings = Settings {
        drain_timeout: Duration::from_millis(100),
        ..roomy()
    };
    let mut door = Door::open(settings).await;
    let (mut buyer, gate) = purchase_under_way(&door).await;
    let fake = door.fake.clone();
    door.begin_to_close();
    assert_eq!(
        door.closed().await,
        DrainReport {
            under_way: 1,
            cut: 1,
            unfinished: 1
        }
    );
    assert!(buyer.is_closed().await);
    // Cut is the answer, not the purchase.
    gate.add_permits(1);
    reached(&fake.ended, 1).await;
}

#[tokio::test]
async fn purchases_without_a_client_are_waited_for() {
    let mut door = Door::open(Settings {
        max_connections: 1,
        ..roomy()
    })
    .await;
    let (buyer, gate) = purchase_under_way(&door).await;
    drop(buyer);
    // The only place is free again: the buyer's connection is over.
    assert_eq!(door.ask(&get("/livez")).await.status, 200);
    door.begin_to_close();
    refused(&door).await;
    gate.add_permits(1);
    let fake = door.fake.clone();
    let report = door.closed().await;
    assert_eq!((report.cut, report.unfinished), (0, 0));
    assert_eq!(*fake.ended.borrow(), 1);
}
