//! Several runs of one thing: their median, least and most.

/// Median, least and most of some samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) count: usize,
}

impl Spread {
    /// `None` without samples. Of an even number the mean of the two in the middle.
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|s| s.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len();
        let upper = sorted.get(count / 2).copied().unwrap_or(max);
        let lower = sorted.get((count - 1) / 2).copied().unwrap_or(min);
        Some(Self { median: f64::midpoint(lower, upper), min, max, count })
    }
}

/// Bytes as a number to calculate with.
pub(crate) fn float(bytes: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // shown with four digits
    let float = bytes as f64;
    float
}

/// With as many decimals as four digits leave.
pub(crate) fn show(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
        let odd = Spread::of([5.0, 1.0, 3.0]).unwrap();
        assert_eq!(odd, Spread { median: 3.0, min: 1.0, max: 5.0, count: 3 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
    }

    #[test]
    fn four_digits() {
        for (value, text) in
            [(0.0, "0.000"), (1.23456, "1.235"), (12.3456, "12.35"), (1234.5, "1234")]
        {
            assert_eq!(show(value), text);
        }
    }
}
