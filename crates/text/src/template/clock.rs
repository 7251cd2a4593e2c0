//! The clock behind `strftime_now`: unix seconds from an injected source, written in UTC.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where `strftime_now` gets the time: unix seconds.
pub(crate) type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

pub(crate) fn system_clock() -> Clock {
    // A clock before 1970 is a broken clock; the epoch is as good an answer as any.
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64))
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

struct Civil {
    year: i64,
    month: i64,
    day: i64,
    weekday: i64,
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// Days since the epoch to a Gregorian date, counting years from March so that the leap day is
/// the last of its year (Howard Hinnant's `civil_from_days`).
fn civil(unix: i64) -> Civil {
    let (days, seconds) = (unix.div_euclid(86_400), unix.rem_euclid(86_400));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * from_march + 2) / 153;
    let day = from_march - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let day_of_year = match month {
        1 | 2 => from_march - 305,
        _ => from_march + 60 + i64::from(leap),
    };
    Civil {
        year,
        month,
        day,
        weekday: (days + 4).rem_euclid(7),
        day_of_year,
        hour: seconds / 3_600,
        minute: seconds / 60 % 60,
        second: seconds % 60,
    }
}

/// Formats `unix` seconds as C's `strftime` does in the C locale and UTC. `%-d` and its like drop
/// the padding. A code that is not known stays as it was written.
pub(crate) fn strftime(format: &str, unix: i64) -> String {
    // Years beyond four digits only come from a broken clock; stay where arithmetic is safe.
    let unix = unix.clamp(-62_135_596_800, 253_402_300_799);
    let date = civil(unix);
    let mut out = String::with_capacity(format.len() + 16);
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = rest.next();
        let padded = code != Some('-');
        if !padded {
            code = rest.next();
        }
        match code.and_then(|code| field(code, padded, &date, unix)) {
            Some(text) => out.push_str(&text),
            None => {
                out.push('%');
                out.extend((!padded).then_some('-'));
                out.extend(code);
            }
        }
    }
    out
}

fn field(code: char, padded: bool, date: &Civil, unix: i64) -> Option<String> {
    let number = |value: i64, width: usize, fill: char| {
        let digits = value.to_string();
        let missing = if padded { width.saturating_sub(digits.len()) } else { 0 };
        fill.to_string().repeat(missing) + &digits
    };
    let month = MONTHS[(date.month - 1) as usize];
    let weekday = WEEKDAYS[date.weekday as usize];
    let hour12 = (date.hour + 11) % 12 + 1;
    let nested = |format| Some(strftime(format, unix));
    Some(match code {
        'Y' => number(date.year, 4, '0'),
        'y' => number(date.year % 100, 2, '0'),
        'C' => number(date.year / 100, 2, '0'),
        'm' => number(date.month, 2, '0'),
        'B' => month.to_owned(),
        'b' | 'h' => month[..3].to_owned(),
        'd' => number(date.day, 2, '0'),
        'e' => number(date.day, 2, ' '),
        'j' => number(date.day_of_year, 3, '0'),
        'A' => weekday.to_owned(),
        'a' => weekday[..3].to_owned(),
        'w' => date.weekday.to_string(),
        'u' => ((date.weekday + 6) % 7 + 1).to_string(),
        'H' => number(date.hour, 2, '0'),
        'I' => number(hour12, 2, '0'),
        'p' => if date.hour < 12 { "AM" } else { "PM" }.to_owned(),
        'M' => number(date.minute, 2, '0'),
        'S' => number(date.second, 2, '0'),
        'f' => "000000".to_owned(),
        's' => unix.to_string(),
        'z' => "+0000".to_owned(),
        'Z' => "UTC".to_owned(),
        'F' => return nested("%Y-%m-%d"),
        'T' | 'X' => return nested("%H:%M:%S"),
        'R' => return nested("%H:%M"),
        'D' | 'x' => return nested("%m/%d/%y"),
        'c' => return nested("%a %b %e %H:%M:%S %Y"),
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_match_those_of_date_1() {
        // Expected texts are from `LC_ALL=C date -u -d @N +FORMAT` (GNU coreutils).
        let all = "%Y-%m-%d %H:%M:%S %j %a %A %b %B %y %I %p %-d %-m %-H %e %u %w";
        let cases = [
            (0, "1970-01-01 00:00:00 001 Thu Thursday Jan January 70 12 AM 1 1 0  1 4 4"),
            (
                951_827_696,
                "2000-02-29 12:34:56 060 Tue Tuesday Feb February 00 12 PM 29 2 12 29 2 2",
            ),
            (
                1_735_689_599,
                "2024-12-31 23:59:59 366 Tue Tuesday Dec December 24 11 PM 31 12 23 31 2 2",
            ),
            (1_751_328_000, "2025-07-01 00:00:00 182 Tue Tuesday Jul July 25 12 AM 1 7 0  1 2 2"),
            (-86_400, "1969-12-31 00:00:00 365 Wed Wednesday Dec December 69 12 AM 31 12 0 31 3 3"),
        ];
        for (unix, expected) in cases {
            assert_eq!(strftime(all, unix), expected, "{unix}");
        }
    }

    #[test]
    fn unknown_codes_and_lone_percents_stay_as_written() {
        assert_eq!(strftime("100%% %Q %-Q %", 0), "100% %Q %-Q %");
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        assert_eq!(strftime("%Y", i64::MAX), "9999");
        assert_eq!(strftime("%Y", i64::MIN), "0001");
    }
}
