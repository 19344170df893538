//! What each route does with each method.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod operations;
mod orders;
mod sales;
mod webhooks;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Method, Response};

use super::FrontDesk;
use super::door::Call;
use super::problem::Problem;
use super::route::Route;

type Answer = Result<Response<Full<Bytes>>, Problem>;

/// Answers a call. `HEAD` is a `GET` whose body hyper keeps to itself.
pub(super) async fn answer<D: FrontDesk>(route: Route, call: &Call<'_, D>, body: Incoming) -> Answer {
    match (route, &call.parts.method) {
        (Route::Orders, &Method::POST) => orders::place(call, body).await,
        (Route::Order, &Method::GET | &Method::HEAD) => orders::show(call).await,
        (Route::Cancel, &Method::POST) => orders::cancel(call).await,
        (Route::Refund, &Method::POST) => orders::refund(call, body).await,
        (Route::Webhook, &Method::POST) => webhooks::receive(call, body).await,
        (Route::Sale, &Method::GET | &Method::HEAD) => sales::show(call).await,
        (Route::Sales, &Method::GET | &Method::HEAD) => sales::page(call).await,
        (Route::Sales, &Method::POST) => sales::list(call, body).await,
        (Route::CancelSale, &Method::GET | &Method::HEAD) => sales::cancellation(call).await,
        (Route::CancelSale, &Method::POST) => sales::cancel(call).await,
        (Route::Livez, &Method::GET | &Method::HEAD) => Ok(operations::live()),
        (Route::Readyz, &Method::GET | &Method::HEAD) => Ok(operations::ready(call)),
        (Route::Metrics, &Method::GET | &Method::HEAD) => operations::metrics(call).await,
        _ => Err(Problem::MethodNotAllowed { allow: route.allow() }),
    }
}
