//! cAdvisor's REST API, read-only. A [`Request`] is read from a path, says whose past it needs, and is answered from
//! that and a [`View`]. Pure.

mod machine;
mod past;
mod stats;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::View;
use crate::{
    events::{Event, Happened},
    history::Point,
    model::{Process, Row},
};

/// A status and the words that go with it.
type Refusal = (u16, String);

const VERSIONS: &str = "Supported API versions: v1.0 v1.1 v1.2 v1.3 v2.0 v2.1";
/// Samples that are given when no number is asked for: of v1, of v2.
const SAMPLES: (usize, usize) = (60, 64);
const EVENTS: usize = 10;

fn broken(why: impl Into<String>) -> Refusal {
    (500, why.into())
}

/// Whose numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    /// By the path of its cgroup, alone or with everything below.
    Cgroup { path: String, below: bool },
    /// A container by name or the beginning of its id; all for an empty one.
    Docker(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Machine,
    Containers(Which),
    Subcontainers(Which),
    DockerContainers(Which),
    Events(String),
    /// Those to come, without end.
    EventsToCome(String),
    /// Processes of one cgroup; of all for `/`.
    Processes(String),
    Version,
    Attributes,
    Summary(Which),
    Stats(Which),
    Spec(Which),
    Storage,
    AppMetrics,
    MachineStats,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Request {
    /// 0 to 3 of v1, or of v2 from 10 on.
    version: u32,
    what: What,
    count: usize,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    max_age: Option<Duration>,
    query: BTreeMap<String, String>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct Body {
    num_stats: Option<i64>,
    start: String,
    end: String,
}

fn parameters(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescaped(key, true), unescaped(value, true))
        })
        .collect()
}

fn unescaped(text: &str, plus: bool) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..2).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 16).ok());
        match (first, digits) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (b'+', _) if plus => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How long `1m30s` is, as Go writes durations.
fn duration(text: &str) -> Option<Duration> {
    let mut left = text;
    let mut sum = 0.0;
    while !left.is_empty() {
        let unit_at = left.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, rest) = left.split_at(unit_at);
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (unit, rest) = rest.split_at(unit_end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * seconds;
        left = rest;
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(sum).ok()).flatten()
}

impl Request {
    /// # Errors
    /// 400 for no version, 500 for what the version does not have; as upstream.
    pub(crate) fn read(path: &str, query: &str, body: &[u8]) -> Result<Self, Refusal> {
        let rest = path.strip_prefix("/api").unwrap_or(path).trim_start_matches('/');
        let (version, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let version = match version {
            "v1.0" => 0,
            "v1.1" => 1,
            "v1.2" => 2,
            "v1.3" => 3,
            "v2.0" => 10,
            "v2.1" => 11,
            "" => return Err((400, VERSIONS.to_owned())),
            other => return Err((400, format!("unsupported API version {other:?}. {VERSIONS}"))),
        };
        let (kind, name) = rest.split_once('/').unwrap_or((rest, ""));
        let name = unescaped(name, false);
        let path = format!("/{}", name.trim_matches('/'));
        let query = parameters(query);
        let told: Body = if body.trim_ascii().is_empty() {
            Body::default()
        } else {
            serde_json::from_slice(body).map_err(|e| broken(format!("unable to decode the json value: {e}")))?
        };
        let flag = |key: &str| query.get(key).is_some_and(|value| matches!(value.as_str(), "true" | "1" | ""));
        let which = || match query.get("type").map_or("name", String::as_str) {
            "name" => Ok(Which::Cgroup { path: path.clone(), below: flag("recursive") }),
            "docker" if flag("recursive") && path != "/" => {
                Err(broken("invalid request: recursive is for the root of type docker alone"))
            }
            "docker" => Ok(Which::Docker(path.trim_start_matches('/').to_owned())),
            other => Err(broken(format!("unknown \"type\" {other:?} for container name {path:?}"))),
        };
        let one = Which::Cgroup { path: path.clone(), below: false };
        let what = match (version, kind) {
            (_, "machine") => What::Machine,
            (0..10, "containers") => What::Containers(one),
            (1..10, "subcontainers") => What::Subcontainers(Which::Cgroup { path, below: true }),
            (2..10, "docker") => What::DockerContainers(Which::Docker(path.trim_start_matches('/').to_owned())),
            (3 | 10.., "events") if flag("stream") => What::EventsToCome(path),
            (3 | 10.., "events") => What::Events(path),
            (10.., "version") => What::Version,
            (10.., "attributes") => What::Attributes,
            (10.., "summary") => What::Summary(which()?),
            (10.., "stats") => What::Stats(which()?),
            (10.., "spec") => What::Spec(which()?),
            (10.., "storage") => What::Storage,
            (10.., "appmetrics") => What::AppMetrics,
            (10.., "ps") => What::Processes(path),
            (11.., "machinestats") => What::MachineStats,
            _ => return Err(broken(format!("unknown request type {kind:?}"))),
        };
        let number = |key: &str| -> Result<Option<i64>, Refusal> {
            let text = query.get(key).filter(|text| !text.is_empty());
            text.map(|text| text.parse().map_err(|_| broken(format!("{key} {text:?} is not a number")))).transpose()
        };
        let time = |key: &str, told: &str| -> Result<Option<Timestamp>, Refusal> {
            let text = query.get(key).map_or(told, String::as_str);
            // What Go writes for no time at all.
            if text.is_empty() || text.starts_with("0001-01-01T00:00:00") {
                return Ok(None);
            }
            text.parse().map(Some).map_err(|_| broken(format!("{key} {text:?} is not a time")))
        };
        let usual = if version < 10 { SAMPLES.0 } else { SAMPLES.1 };
        // Below zero is all.
        let count = told.num_stats.or(number("count")?).map_or(usual, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let max_age = query.get("max_age").filter(|text| !text.is_empty());
        let max_age = max_age
            .map(|text| duration(text).ok_or_else(|| broken(format!("max_age {text:?} is not a duration like 10s"))))
            .transpose()?;
        let (from, to) = (time("start_time", &told.start)?, time("end_time", &told.end)?);
        Ok(Self { version, what, count, from, to, max_age, query })
    }

    /// How old the newest sample may be.
    pub(crate) fn max_age(&self) -> Option<Duration> {
        self.max_age
    }

    /// The words for an event, if it is one of those that are asked for as they come; `None` for any other request.
    pub(crate) fn as_it_comes(&self, event: &Event) -> Option<Vec<u8>> {
        let What::EventsToCome(path) = &self.what else { return None };
        let told = self.told(path, event);
        Some(told.iter().flat_map(|one| format!("{one}\n").into_bytes()).collect())
    }

    /// Whether it is for what is still to come.
    pub(crate) fn has_no_end(&self) -> bool {
        matches!(self.what, What::EventsToCome(_))
    }

    /// Whether the answer needs the processes that run.
    pub(crate) fn wants_processes(&self) -> bool {
        matches!(self.what, What::Processes(_))
    }

    /// The processes of the cgroup that is asked for.
    pub(crate) fn processes(&self, all: &[Process]) -> Value {
        let What::Processes(path) = &self.what else { return Value::Null };
        all.iter().filter(|process| path == "/" || process.cgroup == *path).map(process_info).collect()
    }

    /// The containers whose past the answer needs; an empty id is the machine's.
    pub(crate) fn wanted(&self, view: &View) -> Result<Vec<String>, Refusal> {
        let (What::Containers(which)
        | What::Subcontainers(which)
        | What::DockerContainers(which)
        | What::Summary(which)
        | What::Stats(which)) = &self.what
        else {
            return Ok(if self.what == What::MachineStats { vec![String::new()] } else { Vec::new() });
        };
        Ok(find(view, which)?.iter().filter_map(|found| found.past().map(str::to_owned)).collect())
    }

    /// # Errors
    /// 500 for a container that is not there; as upstream.
    pub(crate) fn answer(
        &self,
        view: &View,
        pasts: &HashMap<String, Vec<Point>>,
        events: &[Event],
    ) -> Result<Value, Refusal> {
        let past = |found: &Found<'_>| {
            let all = found.past().and_then(|id| pasts.get(id)).map_or(&[][..], Vec::as_slice);
            self.within(all)
        };
        let by_name = |which: &Which, make: &dyn Fn(&Found<'_>) -> Value| -> Result<Value, Refusal> {
            let all = find(view, which)?;
            Ok(Value::Object(all.iter().map(|found| (found.name().to_owned(), make(found))).collect::<Map<_, _>>()))
        };
        let info = |found: &Found<'_>| stats::container_info(view, found, &past(found), self.count);
        let v2 = |found: &Found<'_>| stats::v2(view, found, &past(found), self.count);
        match &self.what {
            What::Machine => Ok(machine::machine(view)),
            What::Containers(which) => find(view, which)?.first().map(info).ok_or_else(|| broken("unknown container")),
            What::Subcontainers(which) => Ok(find(view, which)?.iter().map(info).collect()),
            What::DockerContainers(which) => by_name(which, &info),
            What::Events(path) => Ok(self.events(path, events)),
            // Answered as they come, and from what runs at the moment.
            What::EventsToCome(_) | What::Processes(_) => Ok(Value::Array(Vec::new())),
            What::Version => Ok(json!(env!("CARGO_PKG_VERSION"))),
            What::Attributes => Ok(machine::attributes(view)),
            What::Summary(which) => by_name(which, &|found| past::summary(found, &past(found))),
            What::Stats(which) if self.version == 10 => by_name(which, &v2),
            // The machine has a page of its own there.
            What::Stats(which) => {
                let all = find(view, which)?;
                let named = all
                    .iter()
                    .filter(|found| found.row().is_some())
                    .map(|found| (found.name().to_owned(), json!({"spec": stats::spec_v2(found), "stats": v2(found)})));
                Ok(Value::Object(named.collect()))
            }
            What::Spec(which) => by_name(which, &stats::spec_v2),
            What::Storage => Ok(machine::storage(view, self.query.get("label").map(String::as_str))),
            What::AppMetrics => Ok(json!({})),
            What::MachineStats => Ok(machine::stats(view, &past(&Found::Machine(view)), self.count)),
        }
    }

    fn within(&self, past: &[Point]) -> Vec<Point> {
        let inside = |point: &&Point| {
            self.from.is_none_or(|from| point.at_ms >= from.as_millisecond())
                && self.to.is_none_or(|to| point.at_ms <= to.as_millisecond())
        };
        past.iter().filter(inside).copied().collect()
    }

    fn events(&self, path: &str, events: &[Event]) -> Value {
        let most = self.query.get("max_events").and_then(|n| n.parse::<i64>().ok());
        let most = most.map_or(EVENTS, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let mut found: Vec<Value> = events
            .iter()
            .filter(|event| self.from.is_none_or(|from| event.at >= from) && self.to.is_none_or(|to| event.at <= to))
            .flat_map(|event| self.told(path, event))
            .collect();
        // The newest of them.
        found.drain(..found.len().saturating_sub(most));
        Value::Array(found)
    }

    /// An event in upstream's words: none of another place or kind than is asked for, two for a kill.
    fn told(&self, path: &str, event: &Event) -> Vec<Value> {
        let asked = |key: &str| self.query.get(key).or(self.query.get("all_events")).is_some_and(|v| v == "true");
        let below = self.query.get("subcontainers").is_some_and(|v| v == "true");
        if event.cgroup != path && !(below && is_below(&event.cgroup, path)) {
            return Vec::new();
        }
        let one = |kind: &str, cgroup: &str, data: Value| json!({"container_name": cgroup, "timestamp": event.at.to_string(), "event_type": kind, "event_data": data});
        let mut out = Vec::new();
        match &event.what {
            Happened::Created if asked("creation_events") => {
                out.push(one("containerCreation", &event.cgroup, json!({})));
            }
            Happened::Deleted if asked("deletion_events") => {
                out.push(one("containerDeletion", &event.cgroup, json!({})));
            }
            Happened::Killed(kill) => {
                if asked("oom_events") {
                    out.push(one("oom", &event.cgroup, json!({})));
                }
                if asked("oom_kill_events") {
                    let data =
                        json!({"oom": {"pid": kill.pid, "process_name": kill.name, "constraint": kill.constraint}});
                    out.push(one("oomKill", &kill.limited, data));
                }
            }
            _ => {}
        }
        out
    }
}

/// A process in upstream's words.
fn process_info(process: &Process) -> Value {
    json!({
        "user": process.user,
        "pid": process.pid,
        "parent_pid": process.parent,
        "start_time": process.started,
        "percent_cpu": process.cpu_percent,
        "percent_mem": process.memory_percent,
        "rss": process.rss_bytes,
        "virtual_size": process.virtual_bytes,
        "status": process.state,
        "running_time": process.running_time,
        "cgroup_path": process.cgroup,
        "cmd": process.command,
        "fd_count": process.files,
        "psr": process.processor,
    })
}

/// Somebody with numbers.
#[derive(Debug, Clone, Copy)]
enum Found<'a> {
    Machine(&'a View),
    Row(&'a Row),
}

impl<'a> Found<'a> {
    fn name(&self) -> &'a str {
        match self {
            Self::Machine(_) => "/",
            Self::Row(row) => &row.cgroup,
        }
    }

    fn row(&self) -> Option<&'a Row> {
        match self {
            Self::Machine(_) => None,
            Self::Row(row) => Some(row),
        }
    }

    /// Whose past; a pod's own cgroup has none that could be asked for.
    fn past(&self) -> Option<&'a str> {
        match self {
            Self::Machine(_) => Some(""),
            Self::Row(row) => Some(row.subject.container_id.as_str()).filter(|id| !id.is_empty()),
        }
    }
}

fn is_below(cgroup: &str, path: &str) -> bool {
    path == "/" || cgroup.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
}

fn find<'a>(view: &'a View, which: &Which) -> Result<Vec<Found<'a>>, Refusal> {
    let snapshot = &view.snapshot;
    let rows = || snapshot.pods.values().chain(&snapshot.rows).map(|row| Found::Row(row));
    let containers = || snapshot.rows.iter().map(|row| Found::Row(row));
    match which {
        Which::Cgroup { path, below } => {
            let machine = (path == "/").then_some(Found::Machine(view));
            let found: Vec<Found<'_>> = machine
                .into_iter()
                .chain(rows().filter(|found| found.name() == path || (*below && is_below(found.name(), path))))
                .collect();
            // A group that only holds others is not followed itself, but it is there.
            let holds = *below || rows().any(|found| is_below(found.name(), path));
            if found.is_empty() && !holds {
                return Err(broken(format!("failed to get container {path:?}: unknown container {path:?}")));
            }
            Ok(found)
        }
        Which::Docker(name) if name.is_empty() => Ok(containers().collect()),
        Which::Docker(name) => {
            let named = |found: &Found<'_>| found.row().is_some_and(|row| row.subject.name == *name);
            let of_id = |found: &Found<'_>| found.row().is_some_and(|row| row.subject.container_id.starts_with(name));
            let found: Vec<Found<'_>> = containers().filter(named).collect();
            let found: Vec<Found<'_>> = if found.is_empty() { containers().filter(of_id).collect() } else { found };
            match found.len() {
                0 => Err(broken(format!("unable to find Docker container {name:?}"))),
                1 => Ok(found),
                _ => Err(broken(format!("unable to find container: {name:?} is the beginning of several ids"))),
            }
        }
    }
}
