//! What the payment provider tells by itself.

use std::sync::Arc;

use hyper::body::Incoming;

use super::Answer;
use crate::http::door::Call;
use crate::http::problem::Problem;
use crate::http::{FrontDesk, answer};

/// `POST /v1/webhooks/{provider}`
pub(super) async fn receive<D: FrontDesk>(call: &Call<'_, D>, body: Incoming) -> Answer {
    let provider = call.path_id.to_owned();
    let body = call.webhook_body(body).await?;
    let headers = call.parts.headers.clone();
    let request_id = call.request_id().to_owned();
    let door = Arc::clone(call.door);
    match call
        .shielded(async move { door.desk.webhook(&provider, &headers, body, request_id).await })
        .await
    {
        Ok(received) => Ok(answer::webhook(received?)),
        // It is written down, or not: delivered again, it is recognised.
        Err(_) => Err(Problem::UNAVAILABLE),
    }
}
