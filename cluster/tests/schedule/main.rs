//! Schedules alone: patterns of cron against a plain model that goes from minute to minute, and
//! weeks of many claims with clocks that jump and controllers that stop.

mod cron;
mod drills;
mod due;
mod history;
mod model;
mod week;
mod world;

use chrono::{DateTime, Utc};

/// A time, written as RFC 3339 has it.
fn at(text: &str) -> DateTime<Utc> {
    DateTime::parse_from_rfc3339(text).unwrap_or_else(|why| panic!("{text}: {why}")).to_utc()
}

/// A small generator: what is drawn follows from the seed alone.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}
