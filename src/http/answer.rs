//! What clients are told when all is well.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;

use crate::actors::desk::Received;
use crate::domain::{
    Accepted, CancellationView, LateRefund, OrderId, OrderStatus, OrderView, Phase, RefundView, SaleId,
    SaleView,
};

/// Set on an answer that an earlier request with the same key had got.
pub(super) const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// A sale, with stock figures that add up.
#[derive(Serialize)]
pub(super) struct SaleBody<'a> {
    id: SaleId,
    name: &'a str,
    quantity: i64,
    available: i64,
    held: i64,
    sold: i64,
    unit_price_minor: i64,
    currency: &'a str,
    per_buyer_limit: Option<i32>,
    max_per_order: i32,
    opens_at: Timestamp,
    closes_at: Option<Timestamp>,
    cancelled_at: Option<Timestamp>,
    phase: &'static str,
    server_time: Timestamp,
}

impl<'a> From<&'a SaleView> for SaleBody<'a> {
    fn from(view: &'a SaleView) -> Self {
        let (terms, stock) = (&view.sale.terms, &view.stock);
        Self {
            id: view.sale.id,
            name: &terms.name,
            quantity: stock.quantity,
            available: stock.available,
            held: stock.held,
            sold: stock.sold,
            unit_price_minor: terms.unit_price_minor,
            currency: terms.currency.as_str(),
            per_buyer_limit: terms.per_buyer_limit,
            max_per_order: terms.max_per_order,
            opens_at: terms.opens_at,
            closes_at: terms.closes_at,
            cancelled_at: view.cancelled_at,
            phase: Phase::at(view.server_time, terms, stock).as_str(),
            server_time: view.server_time,
        }
    }
}

/// A page of sales; `next` is where the following one begins.
#[derive(Serialize)]
pub(super) struct SalesBody<'a> {
    pub(super) sales: Vec<SaleBody<'a>>,
    pub(super) next: Option<SaleId>,
}

/// An order as it was accepted. Nothing in it ever changes, so that a replay has the same bytes.
#[derive(Serialize)]
struct AcceptedBody<'a> {
    id: OrderId,
    sale_id: SaleId,
    buyer: &'a str,
    quantity: i32,
    amount_minor: i64,
    currency: &'a str,
    status: &'static str,
    created_at: Timestamp,
}

/// How far the end of a sale that is called off is.
#[derive(Serialize)]
struct CancellationBody {
    sale_id: SaleId,
    cancelled_at: Option<Timestamp>,
    done_at: Option<Timestamp>,
    orders_open: i64,
    orders_to_refund: i64,
    orders_released: i64,
    orders_refunded: i64,
}

/// A refund as it stands.
#[derive(Serialize)]
struct RefundBody<'a> {
    order_id: OrderId,
    refund: i32,
    amount_minor: i64,
    currency: &'a str,
    return_units: bool,
    status: &'static str,
}

/// A webhook that is written down.
#[derive(Serialize)]
struct WebhookBody {
    received: &'static str,
}

/// An order as it stands.
#[derive(Serialize)]
struct OrderBody<'a> {
    id: OrderId,
    sale_id: SaleId,
    buyer: &'a str,
    quantity: i32,
    amount_minor: i64,
    currency: &'a str,
    status: &'static str,
    created_at: Timestamp,
    failure_reason: Option<&'static str>,
    attempt: i32,
    late_refund: Option<&'static str>,
    refunded_minor: i64,
    refund_due_minor: i64,
    updated_at: Timestamp,
}

/// 201 with an order.
pub(super) fn accepted(order: &Accepted) -> Response<Full<Bytes>> {
    let body = AcceptedBody {
        id: order.order,
        sale_id: order.sale,
        buyer: order.buyer.as_str(),
        quantity: order.quantity,
        amount_minor: order.amount.amount_minor,
        currency: order.amount.currency.as_str(),
        status: OrderStatus::Pending.as_str(),
        created_at: order.created_at,
    };
    let mut response = created(&body, format!("/v1/orders/{}", order.order));
    if order.replayed {
        response
            .headers_mut()
            .insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// 201 with a sale.
pub(super) fn listed(view: &SaleView) -> Response<Full<Bytes>> {
    created(&SaleBody::from(view), format!("/v1/sales/{}", view.sale.id))
}

/// 200 with an order as it stands.
pub(super) fn order(view: &OrderView) -> Response<Full<Bytes>> {
    ok(&OrderBody {
        id: view.id,
        sale_id: view.sale,
        buyer: view.buyer.as_str(),
        quantity: view.quantity,
        amount_minor: view.amount.amount_minor,
        currency: view.amount.currency.as_str(),
        status: view.status.as_str(),
        created_at: view.created_at,
        failure_reason: view.failure_reason.map(crate::domain::FailureReason::as_str),
        attempt: view.attempt,
        late_refund: view.late_refund.map(|stage| match stage {
            LateRefund::Due => "due",
            LateRefund::Done => "done",
        }),
        refunded_minor: view.refunded_minor,
        refund_due_minor: view.refund_due_minor,
        updated_at: view.updated_at,
    })
}

/// How far the end of a sale is.
pub(super) fn cancellation(status: StatusCode, view: &CancellationView) -> Response<Full<Bytes>> {
    let mut response = ok(&CancellationBody {
        sale_id: view.sale,
        cancelled_at: view.cancelled_at,
        done_at: view.done_at,
        orders_open: view.open,
        orders_to_refund: view.to_refund,
        orders_released: view.released,
        orders_refunded: view.refunded,
    });
    *response.status_mut() = status;
    response
}

/// 202 with a refund that is promised, or has been paid since.
pub(super) fn refund(view: &RefundView) -> Response<Full<Bytes>> {
    let mut response = ok(&RefundBody {
        order_id: view.order,
        refund: view.number,
        amount_minor: view.amount.amount_minor,
        currency: view.amount.currency.as_str(),
        return_units: view.return_units,
        status: if view.done { "done" } else { "due" },
    });
    *response.status_mut() = StatusCode::ACCEPTED;
    if view.replayed {
        response
            .headers_mut()
            .insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// 200 to the provider: it is written down, now or before, and need not come again.
pub(super) fn webhook(received: Received) -> Response<Full<Bytes>> {
    ok(&WebhookBody {
        received: match received {
            Received::First => "first",
            Received::Repeat => "repeat",
        },
    })
}

/// 200 with a body that nobody on the way may keep: who asks is in a header that caches don't know.
pub(super) fn ok(body: &impl Serialize) -> Response<Full<Bytes>> {
    let mut response = json(body);
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn created(body: &impl Serialize, location: String) -> Response<Full<Bytes>> {
    let mut response = json(body);
    *response.status_mut() = StatusCode::CREATED;
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

fn json(body: &impl Serialize) -> Response<Full<Bytes>> {
    // Structs of numbers and text: there is nothing that could fail.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Full::new(bytes.into()));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
