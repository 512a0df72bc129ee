//! Kubernetes quantities of CPU, as in `limits.cpu`.

use serde_json::Value;

/// Thousandths of a CPU that `value` stands for, rounded up as Kubernetes does: 2, 1.5, "2", "500m",
/// "0.5", "2e1", "1k". None when it is not a quantity, is negative, or is absurdly large.
pub(super) fn milli_cpus(value: &Value) -> Option<u64> {
    match value {
        Value::Number(n) => parse(&n.to_string()),
        Value::String(s) => parse(s),
        _ => None,
    }
}

/// Digits are kept as an integer with a power of ten (or two): no rounding until the end.
fn parse(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let number_ends = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_ends);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() + fraction.len() > 20 {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (power, factor) = suffix_value(suffix)?;
    // In milli: digits * factor * 10^(power + 3 - fraction digits).
    let exponent = power + 3 - i32::try_from(fraction.len()).ok()?;
    let scaled = digits.checked_mul(factor)?;
    let ten = |n: i32| 10u128.checked_pow(n.unsigned_abs());
    let milli = if exponent >= 0 {
        scaled.checked_mul(ten(exponent)?)?
    } else {
        // Beyond any digit that could be there, what is left is a tiny part of one milli.
        ten(exponent).map_or(u128::from(scaled > 0), |t| scaled.div_ceil(t))
    };
    u64::try_from(milli).ok()
}

/// The power of ten and the factor that a suffix stands for.
fn suffix_value(suffix: &str) -> Option<(i32, u128)> {
    let decimal = |power| Some((power, 1));
    let binary = |power: u32| Some((0, 1u128 << (10 * power)));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            (-40..=18).contains(&power).then_some((power, 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_read_as_kubernetes_reads_them() {
        for (given, milli) in [
            (json!("2"), 2000),
            (json!("500m"), 500),
            (json!(1.5), 1500),
            (json!(4), 4000),
            (json!("0.5"), 500),
            (json!(".5"), 500),
            (json!("2."), 2000),
            (json!("2e1"), 20_000),
            (json!("1E2"), 100_000),
            (json!("15e-1"), 1500),
            (json!("1k"), 1_000_000),
            (json!("1Ki"), 1_024_000),
            (json!("100u"), 1),
            (json!("1n"), 1),
            (json!("0.0001"), 1),
            (json!("0"), 0),
        ] {
            assert_eq!(milli_cpus(&given), Some(milli), "{given}");
        }
        for given in [
            json!("-1"),
            json!("two"),
            json!("1.2.3"),
            json!(""),
            json!("."),
            json!("1 "),
            json!("1mm"),
            json!("1e99999999999"),
            json!(true),
            json!(-2),
            json!("99999999999E"),
            json!("1e"),
        ] {
            assert_eq!(milli_cpus(&given), None, "{given}");
        }
    }
}
