//! Writes the Prometheus text exposition format (version 0.0.4) from plain data.
//!
//! Our own because the endpoints that replace kubelet, cAdvisor and kube-proxy need exact metric
//! names and sample time stamps, which client libraries do not write.

use std::fmt::Write as _;

/// The content type of the text that [`Text`] builds.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a metric family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows until the process restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, a sum and a count.
    Histogram,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A page of metrics under construction. Samples must follow the header of their family.
#[derive(Debug, Default)]
pub struct Text {
    out: String,
}

impl Text {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a family: its HELP and TYPE lines.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) {
        self.out.push_str("# HELP ");
        self.out.push_str(name);
        self.out.push(' ');
        escape(&mut self.out, help, false);
        let _ = writeln!(self.out, "\n# TYPE {name} {}", kind.word());
    }

    /// One sample without a time stamp.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.sample_at(name, labels, value, None);
    }

    /// One sample; `at` is the time of measurement in milliseconds since 1970, if it matters.
    pub fn sample_at(&mut self, name: &str, labels: &[(&str, &str)], value: f64, at: Option<i64>) {
        self.out.push_str(name);
        if !labels.is_empty() {
            self.out.push('{');
            for (i, (key, text)) in labels.iter().enumerate() {
                if i > 0 {
                    self.out.push(',');
                }
                self.out.push_str(key);
                self.out.push_str("=\"");
                escape(&mut self.out, text, true);
                self.out.push('"');
            }
            self.out.push('}');
        }
        self.out.push(' ');
        number(&mut self.out, value);
        if let Some(at) = at {
            let _ = write!(self.out, " {at}");
        }
        self.out.push('\n');
    }

    /// A histogram's samples: `buckets` are (upper bound, cumulative count) in rising order.
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], buckets: &[(f64, u64)], sum: f64, count: u64) {
        let bucket = format!("{name}_bucket");
        for (bound, cumulative) in buckets {
            let mut text = String::new();
            number(&mut text, *bound);
            let mut with: Vec<(&str, &str)> = labels.to_vec();
            with.push(("le", &text));
            #[allow(clippy::cast_precision_loss)]
            self.sample(&bucket, &with, *cumulative as f64);
        }
        let mut with: Vec<(&str, &str)> = labels.to_vec();
        with.push(("le", "+Inf"));
        #[allow(clippy::cast_precision_loss)]
        let count = count as f64;
        self.sample(&bucket, &with, count);
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    /// The finished page.
    #[must_use]
    pub fn finish(self) -> String {
        self.out
    }
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

fn number(out: &mut String, value: f64) {
    let _ = if value.is_nan() {
        write!(out, "NaN")
    } else if value.is_infinite() {
        write!(out, "{}Inf", if value > 0.0 { '+' } else { '-' })
    } else {
        write!(out, "{value}")
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_families_labels_escapes_and_times() {
        let mut page = Text::new();
        page.family("a_total", "Counts a\nthing with \\.", Kind::Counter);
        page.sample("a_total", &[("name", "x\"y\\z\n")], 3.0);
        page.sample_at("a_total", &[], 0.25, Some(1_700_000_000_123));
        page.sample("a_total", &[("n", "inf")], f64::INFINITY);
        assert_eq!(
            page.finish(),
            "# HELP a_total Counts a\\nthing with \\\\.\n# TYPE a_total counter\n\
             a_total{name=\"x\\\"y\\\\z\\n\"} 3\na_total 0.25 1700000000123\na_total{n=\"inf\"} +Inf\n"
        );
    }

    #[test]
    fn histogram_ends_in_inf_sum_and_count() {
        let mut page = Text::new();
        page.histogram("h", &[("f", "4")], &[(0.5, 1), (1.0, 2)], 1.75, 3);
        assert_eq!(
            page.finish(),
            "h_bucket{f=\"4\",le=\"0.5\"} 1\nh_bucket{f=\"4\",le=\"1\"} 2\nh_bucket{f=\"4\",le=\"+Inf\"} 3\n\
             h_sum{f=\"4\"} 1.75\nh_count{f=\"4\"} 3\n"
        );
    }
}
