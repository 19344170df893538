//! Reading a request's body, within its bounds of size and time.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::problem::Problem;

/// Reads the whole body; more than `max_bytes` are never kept.
pub(super) async fn read(mut body: Incoming, max_bytes: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::PayloadTooLarge { max_bytes };
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(too_large());
    }
    let Some(first) = data(&mut body).await? else {
        return Ok(Bytes::new());
    };
    if first.len() > max_bytes {
        return Err(too_large());
    }
    // Nearly every body comes in one piece, and is used where it lies.
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(first);
    while let Some(next) = data(&mut body).await? {
        if next.len() > max_bytes - whole.len() {
            return Err(too_large());
        }
        whole.extend_from_slice(&next);
    }
    Ok(whole.freeze())
}

/// The next piece; trailers say nothing here.
async fn data(body: &mut Incoming) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Problem::field("body", "complete, and of the length that its headers say"))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}
