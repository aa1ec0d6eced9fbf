//! Writes the Prometheus text exposition format (version 0.0.4) or OpenMetrics (1.0.0) from plain data.
//!
//! Our own, because the endpoints in place of those of kubelet, cAdvisor and kube-proxy need exact metric names and
//! sample timestamps, which client libraries do not write.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// The content type of the text that [`Text::new`] builds.
pub const CONTENT_TYPE: &str = Format::Plain.content_type();

/// Which of the two formats a page is written in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text format, 0.0.4.
    #[default]
    Plain,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The value of `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that an `Accept` header prefers; the plain one when it names neither, or accepts both alike without
    /// naming OpenMetrics.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        let (mut plain, mut open) = (0.0_f64, 0.0_f64);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let (mut quality, mut version) = (1.0_f64, "");
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = value.trim().trim_matches('"'),
                    _ => {}
                }
            }
            match name {
                "application/openmetrics-text" if matches!(version, "" | "0.0.1" | "1.0.0") => open = quality.max(open),
                "text/plain" | "text/*" | "*/*" => plain = quality.max(plain),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Plain }
    }
}

/// The type of a metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only increases until the process restarts.
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
    format: Format,
    described: Option<Described>,
}

/// Families of metrics by name, with the names of the labels of their samples.
pub type Described = BTreeMap<String, BTreeSet<String>>;

impl Text {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty page of a format.
    #[must_use]
    pub fn of(format: Format) -> Self {
        Self { out: String::new(), format, described: None }
    }

    /// An empty page that notes which families and labels are written to it.
    #[must_use]
    pub fn describing() -> Self {
        Self { described: Some(Described::new()), ..Self::default() }
    }

    /// What was noted.
    #[must_use]
    pub fn described(self) -> Described {
        self.described.unwrap_or_default()
    }

    /// Says which labels the samples of a family have, of which there may be none now.
    pub fn declare(&mut self, name: &str, labels: &[&str]) {
        if let Some(described) = &mut self.described {
            described.entry(name.to_owned()).or_default().extend(labels.iter().map(|label| (*label).to_owned()));
        }
    }

    /// Starts a family: its HELP and TYPE lines.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) {
        self.declare(name, &[]);
        let (name, word) = match (self.format, kind) {
            // In OpenMetrics a counter's samples end in `_total`, and the name of its family does not. A counter with
            // another name keeps it, as a family of unknown type.
            (Format::OpenMetrics, Kind::Counter) => {
                name.strip_suffix("_total").map_or((name, "unknown"), |family| (family, "counter"))
            }
            _ => (name, kind.word()),
        };
        self.out.push_str("# HELP ");
        self.out.push_str(name);
        self.out.push(' ');
        escape(&mut self.out, help, self.format == Format::OpenMetrics);
        let _ = writeln!(self.out, "\n# TYPE {name} {word}");
    }

    /// One sample without timestamp.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        if self.described.as_ref().is_some_and(|described| described.contains_key(name)) {
            let names: Vec<&str> = labels.iter().map(|(label, _)| *label).collect();
            self.declare(name, &names);
        }
        self.sample_at(name, labels, value, None);
    }

    /// One sample; `at` is its timestamp in milliseconds since 1970.
    pub fn sample_at(&mut self, name: &str, labels: &[(&str, &str)], value: f64, at: Option<i64>) {
        self.sample_of(name, &Labels::default(), labels, value, at);
    }

    /// One sample with labels that are rendered already, followed by `more`.
    pub fn sample_of(&mut self, name: &str, labels: &Labels, more: &[(&str, &str)], value: f64, at: Option<i64>) {
        self.out.push_str(name);
        if !labels.written.is_empty() || !more.is_empty() {
            self.out.push('{');
            self.out.push_str(&labels.written);
            put_labels(&mut self.out, more, labels.written.is_empty());
            self.out.push('}');
        }
        self.out.push(' ');
        number(&mut self.out, value);
        match at {
            None => {}
            Some(at) if self.format == Format::Plain => {
                let _ = write!(self.out, " {at}");
            }
            // OpenMetrics has seconds.
            Some(at) => {
                let _ = write!(self.out, " {}.{:03}", at.div_euclid(1000), at.rem_euclid(1000));
            }
        }
        self.out.push('\n');
    }

    /// The samples of a histogram: `buckets` are (upper bound, cumulative count) in ascending order.
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
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

/// Labels that many samples share, rendered once.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    written: String,
}

impl Labels {
    /// Renders the labels.
    #[must_use]
    pub fn of(labels: &[(&str, &str)]) -> Self {
        let mut written = String::new();
        put_labels(&mut written, labels, true);
        Self { written }
    }
}

fn put_labels(out: &mut String, labels: &[(&str, &str)], mut first: bool) {
    for (key, text) in labels {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        out.push_str(key);
        out.push_str("=\"");
        escape(out, text, true);
        out.push('"');
    }
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    let mut rest = text;
    while let Some(at) = rest.find(|c| c == '\\' || c == '\n' || (quotes && c == '"')) {
        let (before, behind) = rest.split_at(at);
        out.push_str(before);
        out.push_str(match behind.as_bytes().first() {
            Some(b'\\') => "\\\\",
            Some(b'\n') => "\\n",
            _ => "\\\"",
        });
        // Each of the three is one byte long.
        rest = behind.get(1..).unwrap_or_default();
    }
    out.push_str(rest);
}

fn number(out: &mut String, value: f64) {
    // Most values are whole numbers, which are formatted faster.
    #[allow(clippy::cast_possible_truncation, reason = "all whole numbers of this size fit")]
    let whole = (value.abs() < 9e15 && value.fract() == 0.0).then_some(value as i64);
    let _ = if let Some(whole) = whole {
        write!(out, "{whole}")
    } else if value.is_nan() {
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
    fn open_metrics_has_names_times_and_an_end_of_its_own() {
        let mut page = Text::of(Format::OpenMetrics);
        page.family("a_total", "Says \"a\".", Kind::Counter);
        page.sample_at("a_total", &[("n", "1")], 2.0, Some(1_700_000_000_023));
        page.family("failcnt", "Counts.", Kind::Counter);
        page.sample("failcnt", &[], 1.0);
        assert_eq!(
            page.finish(),
            "# HELP a Says \\\"a\\\".\n# TYPE a counter\na_total{n=\"1\"} 2 1700000000.023\n\
             # HELP failcnt Counts.\n# TYPE failcnt unknown\nfailcnt 1\n# EOF\n"
        );
    }

    #[test]
    fn the_better_liked_format_is_taken() {
        for (accept, wanted) in [
            ("", Format::Plain),
            ("*/*", Format::Plain),
            ("text/plain", Format::Plain),
            ("text/html,*/*;q=0.8", Format::Plain),
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text; version=\"1.0.0\"; q=0.2, text/plain; q=0.9", Format::Plain),
            ("application/openmetrics-text;version=7.0.0", Format::Plain),
            ("application/openmetrics-text;q=0", Format::Plain),
        ] {
            assert_eq!(Format::accepted(accept), wanted, "{accept}");
        }
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
