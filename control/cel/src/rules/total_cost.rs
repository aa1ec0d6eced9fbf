//! What all rules of a schema are estimated to cost; upstream's `TotalCost`.

/// What one expression may be estimated to cost, for all values in an object that it is evaluated for.
pub(super) const PER_EXPRESSION_LIMIT: u64 = 10_000_000;
/// What all expressions of a schema may.
pub(super) const PER_SCHEMA_LIMIT: u64 = 100_000_000;
/// How many of the most expensive rules are named.
const NAMED: usize = 4;

/// The sum, and the expressions that make the most of it.
#[derive(Debug, Default)]
pub(super) struct TotalCost {
    pub(super) total: u64,
    /// With their paths, the most expensive first.
    pub(super) most_expensive: Vec<(String, u64)>,
}

impl TotalCost {
    /// Adds the expression at a path.
    pub(super) fn add(&mut self, path: impl FnOnce() -> String, cost: u64) {
        self.total = self.total.saturating_add(cost);
        if cost < PER_SCHEMA_LIMIT / 100 {
            return;
        }
        let at = self.most_expensive.partition_point(|(_, other)| *other >= cost);
        if at < NAMED {
            self.most_expensive.insert(at, (path(), cost));
            self.most_expensive.truncate(NAMED);
        }
    }
}

/// The words for an estimate above its limit.
pub(super) fn exceeds(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_expensive_expressions_are_named() {
        let mut all = TotalCost::default();
        for (path, cost) in [("a", 999_999), ("b", 1_000_000), ("c", 5_000_000), ("d", 2_000_000), ("e", 5_000_000)] {
            all.add(|| path.to_owned(), cost);
        }
        all.add(|| "f".to_owned(), 3_000_000);
        let named: Vec<&str> = all.most_expensive.iter().map(|(path, _)| &**path).collect();
        assert_eq!((named.join(""), all.total), ("cefd".to_owned(), 16_999_999));
        all.add(|| "g".to_owned(), u64::MAX);
        assert_eq!((all.total, &*all.most_expensive[0].0), (u64::MAX, "g"));
    }

    #[test]
    fn factors_are_written_as_upstream_writes_them() {
        for (cost, factor) in [
            (10_000_001, "1.000000x"),
            (14_999_999, "1.500000x"),
            (15_000_000, "1.5x"),
            (1_000_000_001, "more than 100x"),
        ] {
            let text = exceeds("x", cost, PER_EXPRESSION_LIMIT);
            assert!(text.starts_with(&format!("x exceeds budget by factor of {factor} (")), "{text}");
        }
    }
}
