//! Reads a node's `/metrics/resource`, the five families that metrics-server reads. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Reading, SampledAt};

/// The contents of a node's page.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ResourcePage {
    /// The machine; `None` if a part of it is missing.
    pub(super) machine: Option<Reading>,
    /// By the pod's namespace and name and the container's name.
    pub(super) containers: BTreeMap<ContainerName, ContainerOfPage>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ContainerName {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) name: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ContainerOfPage {
    pub(super) started: Option<Timestamp>,
    /// Values that the page lacks are 0, which hides the pod.
    pub(super) reading: Reading,
}

/// What was read of a machine or container so far.
#[derive(Debug, Default, Clone, Copy)]
struct Parts {
    at: Option<Timestamp>,
    cpu_ns: u64,
    memory_bytes: u64,
    started: Option<Timestamp>,
}

impl Parts {
    fn reading(&self, asked_at: Timestamp) -> Reading {
        let at = SampledAt::There(self.at.unwrap_or(asked_at));
        Reading { at, cpu_ns: self.cpu_ns, memory_bytes: self.memory_bytes }
    }
}

/// One line of a page.
#[derive(Debug, PartialEq)]
struct Sample<'a> {
    family: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
    at: Option<Timestamp>,
}

/// Reads a page in Prometheus's text format. `asked_at` is the time of samples that have none. Lines that are no samples
/// of the five families are skipped.
pub(super) fn read(page: &str, asked_at: Timestamp) -> ResourcePage {
    let mut machine = Parts::default();
    let mut containers: BTreeMap<ContainerName, Parts> = BTreeMap::new();
    for sample in page.lines().filter_map(sample) {
        let of_node = sample.family.starts_with("node_");
        let parts = if of_node {
            &mut machine
        } else {
            let Some(name) = container_name(&sample.labels) else { continue };
            containers.entry(name).or_default()
        };
        match sample.family {
            "container_start_time_seconds" => {
                parts.started = timestamp(sample.value * 1e9);
                continue;
            }
            "node_cpu_usage_seconds_total" | "container_cpu_usage_seconds_total" => {
                parts.cpu_ns = whole(sample.value * 1e9);
            }
            _ => parts.memory_bytes = whole(sample.value),
        }
        parts.at = sample.at.or(parts.at);
    }
    let complete = |parts: &Parts| parts.cpu_ns > 0 && parts.memory_bytes > 0;
    let of_page = |parts: Parts| ContainerOfPage { started: parts.started, reading: parts.reading(asked_at) };
    ResourcePage {
        machine: complete(&machine).then(|| machine.reading(asked_at)),
        containers: containers.into_iter().map(|(name, parts)| (name, of_page(parts))).collect(),
    }
}

fn container_name(labels: &[(&str, String)]) -> Option<ContainerName> {
    let of = |label: &str| labels.iter().find(|(name, _)| *name == label).map(|(_, value)| value.clone());
    Some(ContainerName { namespace: of("namespace")?, pod: of("pod")?, name: of("container")? })
}

/// The sample of a line, if it is one of the five families.
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))?;
    let (family, rest) = line.split_at(end);
    let known = [
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
    ];
    if !known.contains(&family) {
        return None;
    }
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let mut words = rest.split_ascii_whitespace();
    let value: f64 = words.next()?.parse().ok()?;
    let at = match words.next() {
        Some(milliseconds) => Some(Timestamp::from_millisecond(milliseconds.parse().ok()?).ok()?),
        None => None,
    };
    Some(Sample { family, labels, value, at })
}

/// The labels behind `{`, and what follows the `}`.
fn labels(text: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((found, behind));
        }
        let (name, quoted) = rest.split_once('=')?;
        let (value, behind) = unquote(quoted.trim_start().strip_prefix('"')?)?;
        found.push((name.trim(), value));
        let behind = behind.trim_start();
        rest = behind.strip_prefix(',').unwrap_or(behind).trim_start();
    }
}

/// A value up to its closing quote, and what follows.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

/// A count; an invalid one (negative, not a number) is 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "such casts saturate, and NaN is 0")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

fn timestamp(nanoseconds: f64) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(whole(nanoseconds))).ok().filter(|at| *at > Timestamp::UNIX_EPOCH)
}
