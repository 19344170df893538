//! Times as people write them down: with an offset, so that they mean one instant.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::OffsetConflict;

/// What a time may be.
pub(super) const ALLOWED: &str = "an RFC 3339 time with its offset, such as 2026-12-01T10:00:00+01:00 or \
                                  2026-12-01T09:00:00Z, since 1970; a zone may follow, as in \
                                  2026-12-01T10:00:00+01:00[Europe/Berlin], and must agree with the offset";

/// An offset that its zone doesn't have at that time means that somebody miscalculated (mostly around a clock change):
/// better refused than opened an hour off.
static PARSER: DateTimeParser = DateTimeParser::new().offset_conflict(OffsetConflict::Reject);

/// The instant that `text` means; `None` when that isn't certain.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let pieces = PARSER.parse_pieces(text).ok()?;
    // Without an offset it would mean whatever clock its reader looks at, and with a zone alone, one of two hours
    // on the day when the clock is put back.
    pieces.offset()?;
    let instant = if pieces.time_zone_annotation().is_some() {
        PARSER.parse_zoned_datetime(text).ok()?.timestamp()
    } else {
        PARSER.parse_timestamp(text).ok()?
    };
    (instant >= Timestamp::UNIX_EPOCH).then_some(instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(text: &str) -> Option<String> {
        parse(text).map(|instant| instant.to_string())
    }

    #[test]
    fn a_time_with_an_offset_is_an_instant() {
        for (text, instant) in [
            ("2026-12-01T10:00:00+01:00", "2026-12-01T09:00:00Z"),
            ("2026-12-01T09:00:00Z", "2026-12-01T09:00:00Z"),
            ("2026-12-01T09:00:00.123456Z", "2026-12-01T09:00:00.123456Z"),
            ("2026-12-01T23:30:00-05:30", "2026-12-02T05:00:00Z"),
        ] {
            assert_eq!(utc(text).as_deref(), Some(instant), "{text}");
        }
    }

    #[test]
    fn s7_a_zone_with_a_clock_change_on_that_day_opens_at_the_right_instant() {
        for (text, instant) in [
            // 2026-03-29: at 02:00 clocks go to 03:00.
            ("2026-03-29T01:59:59+01:00[Europe/Berlin]", "2026-03-29T00:59:59Z"),
            ("2026-03-29T03:00:00+02:00[Europe/Berlin]", "2026-03-29T01:00:00Z"),
            // 2026-10-25: at 03:00 clocks go back to 02:00; 02:30 is there twice.
            ("2026-10-25T02:30:00+02:00[Europe/Berlin]", "2026-10-25T00:30:00Z"),
            ("2026-10-25T02:30:00+01:00[Europe/Berlin]", "2026-10-25T01:30:00Z"),
        ] {
            assert_eq!(utc(text).as_deref(), Some(instant), "{text}");
        }
    }

    #[test]
    fn what_is_not_certain_is_refused() {
        for text in [
            "",
            "soon",
            "2026-12-01",
            "10:00:00+01:00",
            "2026-12-01T10:00:00",
            "2026-12-01T10:00:00[Europe/Berlin]",
            "2026-10-25T02:30:00[Europe/Berlin]",
            // The offset is that of another season.
            "2026-12-01T10:00:00+02:00[Europe/Berlin]",
            "2026-03-29T03:00:00+01:00[Europe/Berlin]",
            // This hour doesn't exist.
            "2026-03-29T02:30:00+02:00[Europe/Berlin]",
            "2026-12-01T10:00:00+01:00[Europe/Nowhere]",
            "2026-02-30T10:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-12-01T10:00:00+01:00 ",
        ] {
            assert_eq!(utc(text), None, "{text}");
        }
    }
}
