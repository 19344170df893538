//! For operators and load balancers.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::Answer;
use crate::http::door::Call;
use crate::http::problem::{Problem, whole_seconds};
use crate::http::{FrontDesk, answer, settings};

/// What a load balancer is told.
#[derive(Serialize)]
struct Ready {
    postgres: &'static str,
    redis: &'static str,
    draining: bool,
}

/// The process answers; more isn't asked, so that no lost service ever has it restarted.
pub(super) fn live() -> Response<Full<Bytes>> {
    text("ok\n".into(), "text/plain; charset=utf-8")
}

/// Whether purchases should be sent here. Without Redis they may: sales go on through Postgres alone.
pub(super) fn ready<D: FrontDesk>(call: &Call<'_, D>) -> Response<Full<Bytes>> {
    let health = call.door.desk.health();
    let draining = call.door.draining.is_cancelled();
    let name = |up| if up { "up" } else { "down" };
    let body = Ready {
        postgres: name(health.postgres_up),
        redis: name(health.redis_up),
        draining,
    };
    let mut response = answer::ok(&body);
    if draining || !health.postgres_up {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let wait = HeaderValue::from(whole_seconds(settings::RETRY_AFTER));
        response.headers_mut().insert(RETRY_AFTER, wait);
    }
    response
}

/// All metrics. They are written down away from the threads that serve, since that takes milliseconds.
pub(super) async fn metrics<D: FrontDesk>(call: &Call<'_, D>) -> Answer {
    let door = Arc::clone(call.door);
    let rendering = tokio::task::spawn_blocking(move || (door.render)());
    let rendered = call.ask(rendering).await?.map_err(|error| {
        tracing::error!(%error, "the metrics could not be rendered");
        Problem::Internal
    })?;
    Ok(text(rendered, "text/plain; version=0.0.4; charset=utf-8"))
}

fn text(body: String, content_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
