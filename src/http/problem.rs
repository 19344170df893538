//! Every refusal, as RFC 9457 problem+json with a stable `type`. One mapping from what the engine says to what the
//! client reads.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::settings;
use crate::actors::desk::{CancelError, DeskError, ReceiveError, RefundError, Refused, WebhookError};
use crate::domain::{OrderStatus, RefundRefusal, Refusal};

/// The problem that nearly everybody gets in a flash sale, ready to be sent. A test holds it against [`Problem::SoldOut`].
const SOLD_OUT: &str = concat!(
    r#"{"type":"urn:fluxbuy:problem:sold_out","title":"Sold out","status":409,"#,
    r#""detail":"fewer units are available than were asked for; units may come back"}"#
);

/// A field (or parameter) that isn't what it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct FieldError {
    /// Its name.
    pub(super) field: Cow<'static, str>,
    /// What it may be.
    pub(super) allowed: Cow<'static, str>,
}

/// Why a request wasn't done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    InvalidField(Vec<FieldError>),
    IdempotencyKeyMissing,
    IdempotencyKeyInvalid,
    BuyerMissing,
    BuyerInvalid,
    NotFound,
    SaleNotFound,
    OrderNotFound,
    WebhookUnverified,
    WebhookUnreadable,
    MethodNotAllowed { allow: &'static str },
    RequestTimeout,
    SoldOut,
    LimitExceeded { per_buyer_limit: i32 },
    NotOpen { opens_at: Timestamp },
    Closed { closes_at: Timestamp },
    OrderNotCancellable { status: OrderStatus },
    OrderNotRefundable { status: OrderStatus },
    RefundExceeds { left_minor: i64 },
    PayloadTooLarge { max_bytes: usize },
    UnsupportedMediaType,
    IdempotencyKeyReused,
    Internal,
    Overloaded { retry_after: Duration },
    Unavailable { retry_after: Duration },
    OutcomeUnknown { retry_after: Duration },
}

impl Problem {
    /// A single wrong field.
    pub(super) fn field(field: impl Into<Cow<'static, str>>, allowed: impl Into<Cow<'static, str>>) -> Self {
        Self::InvalidField(vec![FieldError {
            field: field.into(),
            allowed: allowed.into(),
        }])
    }

    /// It could not be done, and nothing was; how long that lasts isn't known.
    pub(super) const UNAVAILABLE: Self = Self::Unavailable {
        retry_after: settings::RETRY_AFTER,
    };

    /// It may have been done.
    pub(super) const OUTCOME_UNKNOWN: Self = Self::OutcomeUnknown {
        retry_after: settings::RETRY_AFTER,
    };

    /// An error of a question about a sale.
    pub(super) fn about_sale(error: &DeskError) -> Self {
        Self::about(error, Self::SaleNotFound)
    }

    /// An error of a question about an order.
    pub(super) fn about_order(error: &DeskError) -> Self {
        Self::about(error, Self::OrderNotFound)
    }

    fn about(error: &DeskError, not_found: Self) -> Self {
        match error {
            DeskError::NotFound => not_found,
            DeskError::Unavailable => Self::UNAVAILABLE,
            DeskError::OutcomeUnknown => Self::OUTCOME_UNKNOWN,
        }
    }

    /// Name, status and title. The name never changes once it is published.
    fn facts(&self) -> (&'static str, StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::InvalidField(_) => ("invalid_field", S::BAD_REQUEST, "Invalid field"),
            Self::IdempotencyKeyMissing => (
                "idempotency_key_missing",
                S::BAD_REQUEST,
                "Idempotency key missing",
            ),
            Self::IdempotencyKeyInvalid => (
                "idempotency_key_invalid",
                S::BAD_REQUEST,
                "Idempotency key invalid",
            ),
            Self::BuyerMissing => ("buyer_missing", S::UNAUTHORIZED, "Buyer missing"),
            Self::BuyerInvalid => ("buyer_invalid", S::BAD_REQUEST, "Buyer invalid"),
            Self::NotFound => ("not_found", S::NOT_FOUND, "Not found"),
            Self::SaleNotFound => ("sale_not_found", S::NOT_FOUND, "Sale not found"),
            Self::OrderNotFound => ("order_not_found", S::NOT_FOUND, "Order not found"),
            Self::WebhookUnverified => ("webhook_unverified", S::UNAUTHORIZED, "Webhook unverified"),
            Self::WebhookUnreadable => ("webhook_unreadable", S::BAD_REQUEST, "Webhook unreadable"),
            Self::MethodNotAllowed { .. } => {
                ("method_not_allowed", S::METHOD_NOT_ALLOWED, "Method not allowed")
            }
            Self::RequestTimeout => ("request_timeout", S::REQUEST_TIMEOUT, "Request timeout"),
            Self::SoldOut => ("sold_out", S::CONFLICT, "Sold out"),
            Self::LimitExceeded { .. } => ("limit_exceeded", S::CONFLICT, "Limit exceeded"),
            Self::NotOpen { .. } => ("not_open", S::CONFLICT, "Not open"),
            Self::Closed { .. } => ("closed", S::CONFLICT, "Closed"),
            Self::OrderNotCancellable { .. } => {
                ("order_not_cancellable", S::CONFLICT, "Order not cancellable")
            }
            Self::OrderNotRefundable { .. } => ("order_not_refundable", S::CONFLICT, "Order not refundable"),
            Self::RefundExceeds { .. } => ("refund_exceeds", S::CONFLICT, "Refund exceeds what is left"),
            Self::PayloadTooLarge { .. } => ("payload_too_large", S::PAYLOAD_TOO_LARGE, "Payload too large"),
            Self::UnsupportedMediaType => (
                "unsupported_media_type",
                S::UNSUPPORTED_MEDIA_TYPE,
                "Unsupported media type",
            ),
            Self::IdempotencyKeyReused => (
                "idempotency_key_reused",
                S::UNPROCESSABLE_ENTITY,
                "Idempotency key reused",
            ),
            Self::Internal => ("internal", S::INTERNAL_SERVER_ERROR, "Internal error"),
            Self::Overloaded { .. } => ("overloaded", S::SERVICE_UNAVAILABLE, "Overloaded"),
            Self::Unavailable { .. } => ("unavailable", S::SERVICE_UNAVAILABLE, "Unavailable"),
            Self::OutcomeUnknown { .. } => ("outcome_unknown", S::SERVICE_UNAVAILABLE, "Outcome unknown"),
        }
    }

    /// What it means for this request, and what to do about it.
    fn detail(&self) -> Cow<'static, str> {
        match self {
            Self::InvalidField(_) => "the request is not what it must be; nothing was done".into(),
            Self::IdempotencyKeyMissing => {
                "this needs the header Idempotency-Key: a name that the client makes for it and sends again with every retry"
                    .into()
            }
            Self::IdempotencyKeyInvalid => {
                "the header Idempotency-Key must be there once, with 1 to 255 visible ASCII characters".into()
            }
            Self::BuyerMissing => "the header X-Buyer-Id must say who asks".into(),
            Self::BuyerInvalid => {
                "the header X-Buyer-Id must be there once, with 1 to 64 characters of A-Z a-z 0-9 . _ : @ -".into()
            }
            Self::NotFound => "there is nothing under this path".into(),
            Self::SaleNotFound => "there is no sale with this id".into(),
            Self::OrderNotFound => "this buyer has no order with this id".into(),
            Self::WebhookUnverified => {
                "the request is not signed as this provider signs, with a secret that is set here, within the last minutes".into()
            }
            Self::WebhookUnreadable => "the request is signed by the provider, and its body is no event of it".into(),
            Self::MethodNotAllowed { allow } => format!("this path knows {allow}").into(),
            Self::RequestTimeout => "the body did not come in time; nothing was done".into(),
            Self::SoldOut => "fewer units are available than were asked for; units may come back".into(),
            Self::LimitExceeded { per_buyer_limit } => {
                format!("a buyer may have {per_buyer_limit} units of this sale at a time").into()
            }
            Self::NotOpen { opens_at } => format!("the sale opens at {opens_at}").into(),
            Self::Closed { closes_at } => format!("the sale closed at {closes_at}").into(),
            Self::OrderNotCancellable { status } => {
                format!("only a pending order can be cancelled, this one is {status}").into()
            }
            Self::OrderNotRefundable { status } => {
                format!("only a paid order can be paid back, this one is {status}").into()
            }
            Self::RefundExceeds { left_minor } => {
                format!("{left_minor} minor units are left to be paid back; nothing was done").into()
            }
            Self::PayloadTooLarge { max_bytes } => format!("a body may have {max_bytes} bytes").into(),
            Self::UnsupportedMediaType => {
                "the body must be application/json in UTF-8, without a content encoding".into()
            }
            Self::IdempotencyKeyReused => {
                "this key belongs to an earlier request with another body; a new one needs a new key".into()
            }
            Self::Internal => "this went wrong on our side".into(),
            Self::Overloaded { .. } => "too many requests are waiting; nothing was done".into(),
            Self::Unavailable { .. } => "this can't be done just now; nothing was done".into(),
            Self::OutcomeUnknown { .. } => {
                "it is not known yet whether this was done; a purchase sent again with the same Idempotency-Key finds out"
                    .into()
            }
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded { retry_after }
            | Self::Unavailable { retry_after }
            | Self::OutcomeUnknown { retry_after } => Some(*retry_after),
            _ => None,
        }
    }

    /// The answer.
    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let body = match self {
            Self::SoldOut => Bytes::from_static(SOLD_OUT.as_bytes()),
            _ => serde_json::to_vec(&self).unwrap_or_default().into(),
        };
        let status = self.facts().1;
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
            // Those that caches may otherwise keep by their own lights: what one buyer doesn't have, another does.
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        if let Some(wait) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        match self {
            Self::MethodNotAllowed { allow } => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            Self::WebhookUnverified => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Webhook-Signature"));
            }
            Self::BuyerMissing => {
                headers.insert(
                    WWW_AUTHENTICATE,
                    HeaderValue::from_static(r#"Buyer header="X-Buyer-Id""#),
                );
            }
            _ => {}
        }
        response
    }
}

/// `Retry-After` has whole seconds; too late is better than too early.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_millis().div_ceil(1000).clamp(1, 3600) as u64
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, status, title) = self.facts();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &format_args!("urn:fluxbuy:problem:{kind}"))?;
        map.serialize_entry("title", title)?;
        map.serialize_entry("status", &status.as_u16())?;
        map.serialize_entry("detail", &self.detail())?;
        match self {
            Self::InvalidField(errors) => map.serialize_entry("errors", errors)?,
            Self::LimitExceeded { per_buyer_limit } => {
                map.serialize_entry("per_buyer_limit", per_buyer_limit)?;
            }
            Self::NotOpen { opens_at } => map.serialize_entry("opens_at", opens_at)?,
            Self::Closed { closes_at } => map.serialize_entry("closes_at", closes_at)?,
            Self::OrderNotCancellable { status } | Self::OrderNotRefundable { status } => {
                // The order's status, as in an order. RFC 9457 keeps the member `status` for the code, hence the other name.
                map.serialize_entry("order_status", status.as_str())?;
            }
            Self::RefundExceeds { left_minor } => map.serialize_entry("left_minor", left_minor)?,
            _ => {}
        }
        map.end()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::SoldOut => Self::SoldOut,
            Refusal::LimitExceeded { per_buyer_limit } => Self::LimitExceeded { per_buyer_limit },
            Refusal::NotOpen { opens_at } => Self::NotOpen { opens_at },
            Refusal::Closed { closes_at } => Self::Closed { closes_at },
            Refusal::KeyReused => Self::IdempotencyKeyReused,
            Refusal::SaleNotFound => Self::SaleNotFound,
            Refusal::TooMany { max_per_order } => {
                Self::field("quantity", format!("a whole number from 1 to {max_per_order}"))
            }
            Refusal::Overloaded { retry_after } => Self::Overloaded { retry_after },
            Refusal::Unavailable { retry_after } => Self::Unavailable { retry_after },
            Refusal::OutcomeUnknown { retry_after } => Self::OutcomeUnknown { retry_after },
        }
    }
}

impl From<CancelError> for Problem {
    fn from(error: CancelError) -> Self {
        match error {
            // A row that only occupies its id is no order.
            CancelError::TooLate(OrderStatus::Rejected) => Self::OrderNotFound,
            CancelError::TooLate(status) => Self::OrderNotCancellable { status },
            CancelError::Desk(error) => Self::about_order(&error),
        }
    }
}

impl From<RefundError> for Problem {
    fn from(error: RefundError) -> Self {
        match error {
            RefundError::Refused(RefundRefusal::NotFound) => Self::OrderNotFound,
            RefundError::Refused(RefundRefusal::NotRefundable { status }) => {
                Self::OrderNotRefundable { status }
            }
            RefundError::Refused(RefundRefusal::Exceeds { left_minor }) => Self::RefundExceeds { left_minor },
            RefundError::Refused(RefundRefusal::ReturnNeedsAll) => {
                Self::field("return_units", "true only with the refund of all that is left")
            }
            RefundError::Refused(RefundRefusal::KeyReused) => Self::IdempotencyKeyReused,
            RefundError::Desk(error) => Self::about_order(&error),
        }
    }
}

impl From<WebhookError> for Problem {
    fn from(error: WebhookError) -> Self {
        match error {
            WebhookError::UnknownProvider => Self::NotFound,
            WebhookError::Refused(Refused::Unverified(_)) => Self::WebhookUnverified,
            WebhookError::Refused(Refused::Unreadable) => Self::WebhookUnreadable,
            WebhookError::Receive(ReceiveError::Overloaded) => Self::Overloaded {
                retry_after: settings::RETRY_AFTER,
            },
            WebhookError::Receive(ReceiveError::Unavailable) => Self::UNAVAILABLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn every_kind() -> Vec<Problem> {
        let at = Timestamp::from_second(1_796_115_600).unwrap();
        let wait = Duration::from_millis(1500);
        vec![
            Problem::field("quantity", "a whole number from 1 to 10"),
            Problem::IdempotencyKeyMissing,
            Problem::IdempotencyKeyInvalid,
            Problem::BuyerMissing,
            Problem::BuyerInvalid,
            Problem::NotFound,
            Problem::SaleNotFound,
            Problem::OrderNotFound,
            Problem::WebhookUnverified,
            Problem::WebhookUnreadable,
            Problem::MethodNotAllowed { allow: "GET, HEAD" },
            Problem::RequestTimeout,
            Problem::SoldOut,
            Problem::LimitExceeded { per_buyer_limit: 2 },
            Problem::NotOpen { opens_at: at },
            Problem::Closed { closes_at: at },
            Problem::OrderNotCancellable {
                status: OrderStatus::Paid,
            },
            Problem::OrderNotRefundable {
                status: OrderStatus::Failed,
            },
            Problem::RefundExceeds { left_minor: 40 },
            Problem::PayloadTooLarge { max_bytes: 16384 },
            Problem::UnsupportedMediaType,
            Problem::IdempotencyKeyReused,
            Problem::Internal,
            Problem::Overloaded { retry_after: wait },
            Problem::Unavailable { retry_after: wait },
            Problem::OutcomeUnknown { retry_after: wait },
        ]
    }

    /// As a client gets them. Types, statuses and extra members are promised in docs/api.md.
    #[tokio::test]
    async fn every_kind_as_it_is_sent() {
        let mut answers = Vec::new();
        for problem in every_kind() {
            let response = problem.into_response();
            let mut lines = vec![response.status().as_u16().to_string()];
            let headers = response.headers().iter();
            lines.extend(headers.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())));
            let body = response.into_body().collect().await.unwrap().to_bytes();
            lines.push(String::from_utf8(body.to_vec()).unwrap());
            answers.push(lines.join("\n"));
        }
        insta::assert_snapshot!(answers.join("\n\n"));
    }

    #[test]
    fn every_kind_has_a_type_of_its_own() {
        let mut names: Vec<_> = every_kind().iter().map(|problem| problem.facts().0).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn sold_out_is_prepared_as_it_would_be_made() {
        assert_eq!(serde_json::to_string(&Problem::SoldOut).unwrap(), SOLD_OUT);
    }

    #[test]
    fn waiting_is_in_whole_seconds_and_never_too_short() {
        let of = |millis| whole_seconds(Duration::from_millis(millis));
        assert_eq!(
            [of(0), of(1), of(1000), of(1001), of(10_000_000)],
            [1, 1, 1, 2, 3600]
        );
    }
}
