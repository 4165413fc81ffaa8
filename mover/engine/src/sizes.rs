//! Byte sizes, ranges and durations: what a person types, and what is shown to one.

use chunkstore::{Error, ErrorKind, Result};
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

const UNITS: [(&str, u64); 6] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EiB", 1 << 60),
];

/// `1 backup`, `2 backups`: `things` are more than one.
pub fn counted(count: u64, things: &str) -> String {
    let one = things.strip_suffix('s').filter(|_| count == 1);
    format!("{count} {}", one.unwrap_or(things))
}

/// Bytes of `64KiB`, `64K`, `64k`, `1.5GiB`, `4096`, `10MB`: K, M, … and KiB, MiB, … are powers of
/// 1024, KB, MB, … of 1000.
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = |why: &str| {
        Error::new(ErrorKind::Usage, format!("read size {text:?}"), why)
            .hint("write it like 4096, 64KiB, 256MiB or 1.5GiB")
    };
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits);
    let unit = unit_bytes(suffix.trim_start()).ok_or_else(|| bad("its unit is unknown"))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let number_ok = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !number_ok(fraction) || (number.contains('.') && fraction.is_empty()) {
        return Err(bad("it is not a number"));
    }
    let too_large = || bad("it is too large");
    let whole = whole.parse::<u64>().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) * u128::from(unit);
    if !fraction.is_empty() {
        let scale = u32::try_from(fraction.len())
            .ok()
            .and_then(|n| 10_u128.checked_pow(n))
            .ok_or_else(|| bad("it has too many decimals"))?;
        let part = fraction.parse::<u128>().map_err(|_| bad("it has too many decimals"))?;
        let part =
            part.checked_mul(u128::from(unit)).ok_or_else(|| bad("it has too many decimals"))?;
        if part % scale != 0 {
            return Err(bad("it is not a whole number of bytes"));
        }
        bytes += part / scale;
    }
    u64::try_from(bytes).map_err(|_| too_large())
}

fn unit_bytes(suffix: &str) -> Option<u64> {
    let lower = suffix.to_ascii_lowercase();
    if lower.is_empty() || lower == "b" {
        return Some(1);
    }
    for (power, (name, bytes)) in (1_u32..).zip(UNITS) {
        let binary = name.to_ascii_lowercase();
        let letter = &binary[..1];
        if lower == binary || lower == letter {
            return Some(bytes);
        }
        if lower.strip_suffix('b') == Some(letter) {
            return Some(1000_u64.pow(power));
        }
    }
    None
}

/// Bytes of `OFFSET+LEN` or `START..END`, each in the notation of [`parse_size`]. Empty ranges are
/// refused.
pub fn parse_range(text: &str) -> Result<Range<u64>> {
    let bad = |why: &str| {
        Error::new(ErrorKind::Usage, format!("read range {text:?}"), why)
            .hint("write it like 1GiB+64KiB (offset and length) or 0..4096 (start and end)")
    };
    let range = if let Some((start, end)) = text.split_once("..") {
        parse_size(start)?..parse_size(end)?
    } else if let Some((start, len)) = text.split_once('+') {
        let start = parse_size(start)?;
        start..start.checked_add(parse_size(len)?).ok_or_else(|| bad("it ends too far away"))?
    } else {
        return Err(bad("it has neither a + nor two dots"));
    };
    if range.is_empty() {
        return Err(bad("it is empty"));
    }
    Ok(range)
}

/// A rate in bytes per second, written as a size; what is empty is no limit.
pub fn parse_rate(flag: &str, text: Option<&str>) -> Result<Option<NonZeroU64>> {
    let Some(text) = text.filter(|t| !t.is_empty()) else { return Ok(None) };
    let rate = parse_size(text).map_err(|e| e.within(format!("use {flag}")))?;
    NonZeroU64::new(rate).map(Some).ok_or_else(|| {
        Error::new(ErrorKind::Usage, format!("use {flag} {text:?}"), "nothing would ever be moved")
            .hint("leave it out to have no limit")
    })
}

/// A span of time: `90s`, `30m`, `2h`, `1d`; a bare number is of seconds, what is empty is none.
pub fn parse_time(flag: &str, text: &str) -> Result<Duration> {
    let bad = || {
        Error::new(ErrorKind::Usage, format!("use {flag} {text:?}"), "it is no span of time")
            .hint("write it like 90s, 30m or 2h")
    };
    let text = text.trim();
    if text.is_empty() {
        return Ok(Duration::ZERO);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds: u64 = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(bad)
}

/// `1.50 GiB`: three digits that matter.
pub fn show_bytes(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, size)| bytes >= *size);
    let Some((name, size)) = unit else { return format!("{bytes} B") };
    // hundredths, rounded down, in integers: no float for what may be 64 PiB
    let hundredths = u128::from(bytes) * 100 / u128::from(*size);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    match whole {
        0..10 => format!("{whole}.{rest:02} {name}"),
        10..100 => format!("{whole}.{} {name}", rest / 10),
        _ => format!("{whole} {name}"),
    }
}

/// `12.3 s`, `4 min 05 s`, `2 h 03 min`.
pub fn show_duration(elapsed: Duration) -> String {
    match elapsed.as_secs() {
        0 if elapsed.subsec_millis() < 100 => format!("{} ms", elapsed.as_millis()),
        seconds @ 0..60 => format!("{seconds}.{} s", elapsed.subsec_millis() / 100),
        seconds => show_seconds(seconds),
    }
}

/// As [`show_duration`], for what is not known to a tenth of a second.
pub fn show_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// `512 MiB/s`; nothing is said of no time at all.
pub fn show_rate(bytes: u64, elapsed: Duration) -> String {
    match u128::from(bytes).checked_mul(1_000_000) {
        Some(scaled) if !elapsed.is_zero() => {
            let rate = scaled / elapsed.as_micros().max(1);
            format!("{}/s", show_bytes(u64::try_from(rate).unwrap_or(u64::MAX)))
        }
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time_have_a_unit() {
        let seconds = |text| parse_time("--t", text).map(|t| t.as_secs());
        for (text, expected) in [("0", 0), ("", 0), ("7", 7), ("90s", 90), ("30m", 1800)] {
            assert_eq!(seconds(text).unwrap(), expected, "{text}");
        }
        assert_eq!((seconds("2h").unwrap(), seconds("1d").unwrap()), (7200, 86400));
        for text in ["m", "1x", "-1s", "1.5h", "99999999999999999999", "9999999999999999d"] {
            assert_eq!(seconds(text).expect_err(text).kind(), ErrorKind::Usage, "{text}");
        }
    }
    use proptest::prelude::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64KiB", 65536),
            ("64kib", 65536),
            ("64K", 65536),
            ("64k", 65536),
            (" 64 KiB ", 65536),
            ("64KB", 64_000),
            ("1GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("2.25K", 2304),
            ("1TB", 1_000_000_000_000),
            ("64PiB", 1 << 56),
            ("15EiB", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_a_usage_error() {
        for text in [
            "",
            " ",
            "KiB",
            "-1",
            "+1",
            "1.",
            ".5K",
            "1.2.3",
            "1e6",
            "0x10",
            "64XiB",
            "64KiBs",
            "16EiB",
            "18446744073709551616",
            "0.3",
            "1.0001K",
            "٣",
            "1 2",
            "1_000",
            "0.0000000000000000000000000000000000000000000000001E",
        ] {
            let e = parse_size(text).expect_err(text);
            assert_eq!(e.kind(), ErrorKind::Usage, "{text}");
        }
    }

    #[test]
    fn ranges_in_both_notations() {
        assert_eq!(parse_range("0..4096").unwrap(), 0..4096);
        assert_eq!(parse_range("4K+512").unwrap(), 4096..4608);
        for text in ["", "5", "5..5", "6..5", "1+0", "..", "+", "1..", "a+b", "15EiB+15EiB", "-1+2"]
        {
            assert_eq!(parse_range(text).expect_err(text).kind(), ErrorKind::Usage, "{text}");
        }
    }

    #[test]
    fn figures_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            (300 << 30, "300 GiB"),
            (1 << 56, "64.0 PiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(show_bytes(bytes), text);
        }
        assert_eq!(show_duration(Duration::from_millis(12)), "12 ms");
        assert_eq!(show_duration(Duration::from_millis(12_345)), "12.3 s");
        assert_eq!(show_duration(Duration::from_secs(245)), "4 min 05 s");
        assert_eq!(show_duration(Duration::from_secs(7380)), "2 h 03 min");
        assert_eq!(show_rate(1 << 20, Duration::from_millis(500)), "2.00 MiB/s");
        assert_eq!(show_rate(1, Duration::ZERO), "-");
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_an_error(text in "\\PC{0,40}") {
            let _ = parse_size(&text);
            let _ = parse_range(&text);
        }

        #[test]
        fn bytes_come_back(bytes: u64) {
            prop_assert_eq!(parse_size(&bytes.to_string()).unwrap(), bytes);
        }
    }
}
