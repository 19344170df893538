//! What Redis may answer: any values at all. An answer is read as what it says, or is an error; it is never made up.

use redis::Value;
use uuid::Uuid;

use super::reply::Reply;
use super::{Reserve, Standing, Verdict, release, reserve, scan};

/// The most requests that an answer is held against.
const MAX_ASKED: u8 = 8;

/// The first byte says how many requests were asked; each line is an element of the answer.
pub(crate) fn answer(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let asked = usize::from(first % (MAX_ASKED + 1));
    let elements: Vec<Value> = rest.split(|b| *b == b'\n').map(element).collect();
    let array = Value::Array(elements.clone());

    if let Ok(Reserve::Decided { verdicts, .. }) = reserve::read(array.clone(), asked) {
        assert_eq!(verdicts.len(), asked, "as many verdicts as requests");
        let replays = verdicts
            .iter()
            .filter(|verdict| matches!(verdict, Verdict::Replay(_)));
        assert!(
            replays.count() + 4 <= elements.len(),
            "a replay's order came from nowhere"
        );
    }
    if let Ok(Some(slice)) = release::read(array.clone()) {
        assert!(
            elements.len() >= 5,
            "an answer that is too short was read as {slice:?}"
        );
    }
    if let Ok(Standing::Loaded(pulse)) = scan::read_standing(array) {
        let text = |n: usize| super::reply::text(&elements[n]).map(str::to_owned);
        let epoch = text(1).expect("an epoch is a text");
        assert_eq!(epoch.parse(), Ok(pulse.epoch));
    }
    if let [field, value, ..] = elements.as_slice()
        && let (Ok(field), Ok(value)) = (super::reply::text(field), super::reply::text(value))
        && let Ok(held) = scan::held(field, value)
    {
        assert_eq!(Uuid::parse_str(field), Ok(held.order.0));
        let again = format!(
            "{}:{}:{}:{}",
            held.quantity,
            held.reserved_at.as_microsecond(),
            held.digest.0.simple(),
            held.buyer
        );
        assert_eq!(scan::held(&held.order.to_string(), &again).ok(), Some(held));
    }
    for value in &elements {
        assert!(Reply::new(value.clone()).is_err(), "{value:?} is no array");
    }
}

/// `:` begins a number, `-` is nothing at all, and everything else is a text.
fn element(line: &[u8]) -> Value {
    match line.split_first() {
        Some((b':', digits)) => std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok())
            .map_or(Value::Nil, Value::Int),
        Some((b'-', [])) => Value::Nil,
        _ => Value::BulkString(line.to_vec()),
    }
}
