//! Times as Ollama writes them.

use crate::error::ServerError;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// RFC 3339 in UTC.
pub(super) fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86400, since.as_secs() % 86400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The Gregorian date, by whole cycles of 400 years that begin on a 1st of March.
fn date(days: u64) -> (u64, u64, u64) {
    const CYCLE: u64 = 146_097;
    // From the 1st of March of year 0 to 1970.
    let days = days + 719_468;
    let (cycle, day) = (days / CYCLE, days % CYCLE);
    let year = (day - day / 1460 + day / 36_524 - day / (CYCLE - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let year = year + 400 * cycle + u64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, date)
}

/// How long a model stays: seconds, or a text such as `5m` or `1h30m`; anything below zero is for good.
pub(super) fn stay(value: &Value) -> Result<Option<Duration>, ServerError> {
    const NAME: &str = "keep_alive";
    let seconds = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok().or_else(|| parts(text)),
        _ => None,
    };
    let bad = || {
        let given = crate::app::shortened(&value.to_string());
        ServerError::invalid(
            NAME,
            format!("`{NAME}` is {given}; give seconds, or a text such as 5m"),
        )
    };
    let seconds = seconds.ok_or_else(bad)?;
    if seconds < 0.0 {
        return Ok(None);
    }
    Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| bad())
}

/// Seconds of a duration made of numbers with units.
fn parts(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let end = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        seconds += number
            * match &unit[..end] {
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &unit[end..];
    }
    Some(sign * seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_time_is_the_date_that_it_is() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_stay_is_seconds_or_parts_with_units_and_below_zero_it_is_for_good() {
        let seconds = |n: f64| Some(Duration::from_secs_f64(n));
        for (value, expected) in [
            (json!(0), seconds(0.0)),
            (json!(90), seconds(90.0)),
            (json!("5m"), seconds(300.0)),
            (json!("1h30m"), seconds(5400.0)),
            (json!("300ms"), seconds(0.3)),
            (json!("20"), seconds(20.0)),
            (json!(-1), None),
            (json!("-1m"), None),
        ] {
            assert_eq!(stay(&value).unwrap(), expected, "{value}");
        }
        for value in [json!("soon"), json!("5 minutes"), json!(true), json!("5x"), json!(1e300)] {
            assert!(stay(&value).is_err(), "{value}");
        }
    }
}
