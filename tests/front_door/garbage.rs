//! Bytes that nobody in their right mind would send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::time::Duration;

use fluxbuy::http::Settings;
use proptest::prelude::*;

use crate::support::*;

/// A door for all cases, on a runtime of its own.
static ADDRESS: LazyLock<SocketAddr> = LazyLock::new(|| {
    let (address, opened) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let short = Duration::from_millis(300);
            let settings = Settings {
                header_read_timeout: short,
                body_read_timeout: short,
                connection_idle_timeout: short / 15,
                max_body_bytes: 512,
                ..roomy()
            };
            let door = Door::open(settings).await;
            address.send(door.address).unwrap();
            door.closed().await
        })
    });
    opened.recv().unwrap()
});

fn connect() -> TcpStream {
    let stream = TcpStream::connect(*ADDRESS).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends it in two pieces and reads until the door closes the connection, which it must.
fn send(bytes: &[u8], cut: usize) -> Vec<u8> {
    let mut stream = connect();
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    // The door may have closed by then.
    stream
        .write_all(first)
        .and_then(|()| stream.write_all(second))
        .ok();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("left hanging after {answer:?}")
        }
        _ => answer,
    }
}

/// A good request with some bytes of it changed, dropped or added.
fn bent() -> impl Strategy<Value = Vec<u8>> {
    let request = prop_oneof![
        Just(purchase()),
        Just(get("/v1/sales?limit=5")),
        Just(post("/v1/sales", "", "{\"name\":1}")),
        Just(purchase_with(
            "Transfer-Encoding: chunked\r\n",
            "3\r\n{}\r\n\r\n0\r\n\r\n"
        )),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6);
    (request, changes).prop_map(|(request, changes)| {
        let mut bytes = request.into_bytes();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_makes_it_hang_or_fall(
        bytes in prop_oneof![bent(), prop::collection::vec(any::<u8>(), 0..600)],
        cut in 0..200_usize,
    ) {
        let answer = send(&bytes, cut);
        if !answer.is_empty() {
            prop_assert!(answer.starts_with(b"HTTP/1."), "{:?}", answer);
        }
        prop_assert!(!answer.windows(12).any(|w| w == b"HTTP/1.1 500"), "{:?}", String::from_utf8_lossy(&answer));
        prop_assert!(send(get("/livez").as_bytes(), 5).starts_with(b"HTTP/1.1 200"));
    }
}
