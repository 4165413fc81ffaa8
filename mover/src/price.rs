//! What a store asks for: a file of prices, and what so many requests and bytes cost by it. Pure;
//! prices are the user's.
//!
//! `docs/reference.md` has the form of the file. Money is a floating number: it is an estimate
//! from estimates.

use chunkstore::{Error, ErrorKind, Result, store::RequestCounts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A file of prices is no larger.
pub const PRICE_FILE_BYTES_MAX: u64 = 64 << 10;
const GIB: f64 = 1_073_741_824.0;
/// More than any store asks for anything: a figure behind it is a mistake, and sums stay finite.
const PRICE_MAX: f64 = 1e9;

/// Prices of stores in one currency.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceList {
    /// As it is printed.
    pub currency: String,
    /// By URL (`s3://bucket`, also with a prefix) or by scheme (`s3`).
    pub stores: BTreeMap<String, Prices>,
}

/// Prices of one store.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// 1000 requests that write: PUT, also those that create.
    pub put_per_1000: f64,
    /// 1000 requests that read: GET and HEAD.
    pub get_per_1000: f64,
    /// 1000 pages of a listing.
    pub list_per_1000: f64,
    /// 1000 deletions.
    #[serde(default)]
    pub delete_per_1000: f64,
    /// A GiB stored for a month.
    pub stored_gib_month: f64,
    /// A GiB read out of the store.
    #[serde(default)]
    pub egress_gib: f64,
    /// A GiB written into it.
    #[serde(default)]
    pub ingress_gib: f64,
}

/// What is used once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests.
    pub requests: RequestCounts,
    /// Bytes written.
    pub ingress_bytes: u64,
    /// Bytes read.
    pub egress_bytes: u64,
}

/// What that costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Requests of all kinds.
    pub requests: f64,
    /// Bytes in and out.
    pub transfer: f64,
    /// Both.
    pub once: f64,
}

impl PriceList {
    /// Reads a list; `name` is what errors call it.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self> {
        let wrong = |why: String| {
            Error::new(ErrorKind::Usage, format!("read price file {name}"), why)
                .hint("docs/reference.md shows the form of a price file")
        };
        let list: Self = serde_json::from_slice(bytes).map_err(|e| wrong(e.to_string()))?;
        if list.currency.is_empty() || list.currency.chars().any(|c| c.is_control()) {
            return Err(wrong("the currency has no name".into()));
        }
        for (store, prices) in &list.stores {
            for (name, price) in prices.named() {
                if !(0.0..=PRICE_MAX).contains(&price) {
                    return Err(wrong(format!("{name} of {store} is {price}, which is no price")));
                }
            }
        }
        Ok(list)
    }

    /// Prices of the store at `url`: those of the longest name that its URL begins with, else those
    /// of its scheme.
    pub fn of(&self, url: &str) -> Result<&Prices> {
        let begins = |name: &str| {
            let name = name.trim_end_matches('/');
            url.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let named = self.stores.iter().filter(|(name, _)| name.contains("://") && begins(name));
        let longest = named.max_by_key(|(name, _)| name.trim_end_matches('/').len());
        let scheme = url.split_once("://").map_or("file", |(scheme, _)| scheme);
        let found = longest.map(|(_, prices)| prices).or_else(|| self.stores.get(scheme));
        found.ok_or_else(|| {
            let known: Vec<&str> = self.stores.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let why = format!("the price file has no prices for it, only for {known}");
            Error::new(ErrorKind::Usage, format!("find prices of {url}"), why)
                .hint(format!("add \"{scheme}\" to its stores"))
        })
    }
}

impl Prices {
    fn named(&self) -> [(&'static str, f64); 7] {
        [
            ("put_per_1000", self.put_per_1000),
            ("get_per_1000", self.get_per_1000),
            ("list_per_1000", self.list_per_1000),
            ("delete_per_1000", self.delete_per_1000),
            ("stored_gib_month", self.stored_gib_month),
            ("egress_gib", self.egress_gib),
            ("ingress_gib", self.ingress_gib),
        ]
    }

    /// What is paid once.
    pub fn cost(&self, usage: &Usage) -> Cost {
        let r = &usage.requests;
        let requests = (float(r.puts + r.creates) * self.put_per_1000
            + float(r.gets + r.heads) * self.get_per_1000
            + float(r.lists) * self.list_per_1000
            + float(r.deletes) * self.delete_per_1000)
            / 1000.0;
        let transfer = (float(usage.ingress_bytes) * self.ingress_gib
            + float(usage.egress_bytes) * self.egress_gib)
            / GIB;
        Cost { requests, transfer, once: requests + transfer }
    }

    /// What is paid each month for so many bytes.
    pub fn month(&self, stored_bytes: u64) -> f64 {
        float(stored_bytes) * self.stored_gib_month / GIB
    }
}

#[allow(clippy::cast_precision_loss)] // 53 bits are more than an estimate has
fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{
        "currency": "USD",
        "stores": {
            "s3": { "put_per_1000": 0.005, "get_per_1000": 0.0004, "list_per_1000": 0.005, "stored_gib_month": 0.023,
                    "egress_gib": 0.09 },
            "s3://cold": { "put_per_1000": 0.05, "get_per_1000": 0.01, "list_per_1000": 0.005, "delete_per_1000": 0.001,
                    "stored_gib_month": 0.004, "ingress_gib": 0.02, "egress_gib": 0.03 },
            "s3://cold/own/": { "put_per_1000": 1, "get_per_1000": 0, "list_per_1000": 0, "stored_gib_month": 0 }
        }
    }"#;

    fn list() -> PriceList {
        PriceList::parse("prices.json", LIST.as_bytes()).unwrap()
    }

    #[test]
    fn money_is_what_one_gets_by_hand() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let usage = Usage {
            requests: RequestCounts {
                gets: 300,
                puts: 1900,
                creates: 100,
                heads: 700,
                lists: 40,
                deletes: 5000,
                failed_tries: 9,
            },
            ingress_bytes: 3 << 29,
            egress_bytes: 1 << 29,
        };
        // 2000 writes, 1000 reads, 40 listings; 0.5 GiB out
        let list = list();
        let s3 = list.of("s3://bucket/x").unwrap();
        let cost = s3.cost(&usage);
        near(cost.requests, 0.010 + 0.0004 + 0.0002);
        near(cost.transfer, 0.045);
        near(cost.once, 0.0556);
        near(s3.month(10 << 30), 0.23);
        // 0.1 + 0.01 + 0.0002 + 0.005; 1.5 GiB in, 0.5 GiB out
        let cold = list.of("s3://cold/other").unwrap();
        let cost = cold.cost(&usage);
        near(cost.requests, 0.1152);
        near(cost.transfer, 0.03 + 0.015);
        near(cold.month(1 << 40), 4.096);
    }

    #[test]
    fn the_longest_name_counts_and_the_scheme_is_the_last() {
        let list = list();
        let put = |url: &str| list.of(url).map(|p| p.put_per_1000);
        for (url, price) in [
            ("s3://warm/a", 0.005),
            ("s3://cold", 0.05),
            ("s3://cold/owner", 0.05),
            ("s3://colder", 0.005),
            ("s3://cold/own", 1.0),
            ("s3://cold/own/a", 1.0),
        ] {
            assert_eq!(put(url).unwrap(), price, "{url}");
        }
        let e = put("gs://bucket").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage);
        assert!(e.to_string().contains("only for s3, s3://cold, s3://cold/own/"), "{e}");
        assert!(put("/srv/backups").is_err());
    }

    #[test]
    fn what_is_no_list_of_prices_is_one_error() {
        let store =
            |prices: &str| format!(r#"{{"currency":"USD","stores":{{"s3":{{{prices}}}}}}}"#);
        let all = r#""put_per_1000":1,"get_per_1000":1,"list_per_1000":1,"stored_gib_month":1"#;
        assert!(PriceList::parse("p", store(all).as_bytes()).is_ok());
        for text in [
            String::new(),
            "[]".into(),
            r#"{"stores":{}}"#.into(),
            r#"{"currency":"","stores":{}}"#.into(),
            r#"{"currency":"USD","stores":{},"store":{}}"#.into(),
            store(r#""put_per_1000":1"#),
            store(&format!("{all},\"puts\":1")),
            store(&format!("{all},\"egress_gib\":-1")),
            store(&format!("{all},\"egress_gib\":1e300")),
            store(&format!("{all},\"egress_gib\":\"1\"")),
        ] {
            let e = PriceList::parse("p", text.as_bytes()).expect_err(&text);
            assert_eq!(e.kind(), ErrorKind::Usage, "{text}");
            assert!(e.to_string().starts_with("read price file p: "), "{e}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text in "\\PC{0,80}", price in proptest::num::f64::ANY) {
            let _ = PriceList::parse("p", text.as_bytes());
            let list = LIST.replace("0.023", &price.to_string());
            if let Ok(list) = PriceList::parse("p", list.as_bytes()) {
                let month = list.of("s3://b").unwrap().month(u64::MAX);
                proptest::prop_assert!(month.is_finite() && month >= 0.0);
            }
        }
    }
}
