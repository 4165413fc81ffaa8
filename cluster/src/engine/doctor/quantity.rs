//! Quantities as Kubernetes writes them: `10Gi`, `500m`, `1.5`, `2e3`.

/// What a text means, as a number of its unit; none for a text that is no quantity. It is good for
/// comparisons: up to nine petabytes each byte counts.
pub(super) fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let text = text.trim();
    let of = SUFFIXES.iter().find_map(|(name, scale)| Some((text.strip_suffix(name)?, *scale)));
    let (digits, scale) = of.unwrap_or((text, 1.0));
    // A number of Rust may be other things too, such as `inf`.
    let is_number = digits.starts_with(|at: char| at.is_ascii_digit() || "+-.".contains(at))
        && digits.ends_with(|at: char| at.is_ascii_digit() || at == '.');
    digits.parse::<f64>().ok().filter(|_| is_number).map(|number| number * scale)
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn each_form_is_read() {
        for (text, number) in [
            ("1", 1.0),
            ("0", 0.0),
            ("500m", 0.5),
            ("1.5", 1.5),
            ("320Mi", 335_544_320.0),
            ("10Gi", 10_737_418_240.0),
            ("10G", 1e10),
            ("2e3", 2000.0),
            ("2E3", 2000.0),
            ("1E", 1e18),
            ("1Ei", 1_152_921_504_606_846_976.0),
        ] {
            assert_eq!(quantity(text), Some(number), "{text}");
        }
        for text in ["", "Gi", "inf", "nan", "ten", "1 0", "1GiB", "-infinity"] {
            assert_eq!(quantity(text), None, "{text}");
        }
    }
}
