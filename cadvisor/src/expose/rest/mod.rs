//! cAdvisor's REST API, read-only. A [`Request`] is parsed from a path, names the histories it needs, and is answered
//! from those and a [`View`]. Pure.

mod derived_stats;
mod machine;
mod stats;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use windlass_kit::duration;

use super::View;
use crate::{
    events::{Event, EventType},
    history::Point,
    model::{Process, Row},
};

/// An HTTP status and a message.
type RestError = (u16, String);

const VERSIONS: &str = "Supported API versions: v1.0 v1.1 v1.2 v1.3 v2.0 v2.1";
/// Default number of samples: of v1, of v2.
const DEFAULT_SAMPLES: (usize, usize) = (60, 64);
const DEFAULT_EVENTS: usize = 10;

fn failed(why: impl Into<String>) -> RestError {
    (500, why.into())
}

/// The containers that a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    /// By the path of its cgroup, alone or with all cgroups below it.
    Cgroup { path: String, below: bool },
    /// A container by name or prefix of its id; all containers for an empty one.
    Docker(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Resource {
    Machine,
    Containers(Scope),
    Subcontainers(Scope),
    DockerContainers(Scope),
    Events(String),
    /// Future events, without end.
    EventStream(String),
    /// Processes of one cgroup; all for `/`.
    Processes(String),
    Version,
    Attributes,
    Summary(Scope),
    Stats(Scope),
    Spec(Scope),
    Storage,
    AppMetrics,
    MachineStats,
}

/// One parsed request.
#[derive(Debug)]
pub(crate) struct Request {
    /// Minor version: 0 to 3 of v1, 10 and 11 of v2.
    version: u32,
    resource: Resource,
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

impl Request {
    /// # Errors
    /// 400 for an unknown version, 500 for a resource that the version does not have; as cAdvisor.
    pub(crate) fn read(path: &str, query: &str, body: &[u8]) -> Result<Self, RestError> {
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
        let body: Body = if body.trim_ascii().is_empty() {
            Body::default()
        } else {
            serde_json::from_slice(body).map_err(|e| failed(format!("unable to decode the json value: {e}")))?
        };
        let flag = |key: &str| query.get(key).is_some_and(|value| matches!(value.as_str(), "true" | "1" | ""));
        let scope = || match query.get("type").map_or("name", String::as_str) {
            "name" => Ok(Scope::Cgroup { path: path.clone(), below: flag("recursive") }),
            "docker" if flag("recursive") && path != "/" => {
                Err(failed("invalid request: recursive is for the root of type docker alone"))
            }
            "docker" => Ok(Scope::Docker(path.trim_start_matches('/').to_owned())),
            other => Err(failed(format!("unknown \"type\" {other:?} for container name {path:?}"))),
        };
        let one = Scope::Cgroup { path: path.clone(), below: false };
        let resource = match (version, kind) {
            (_, "machine") => Resource::Machine,
            (0..10, "containers") => Resource::Containers(one),
            (1..10, "subcontainers") => Resource::Subcontainers(Scope::Cgroup { path, below: true }),
            (2..10, "docker") => Resource::DockerContainers(Scope::Docker(path.trim_start_matches('/').to_owned())),
            (3 | 10.., "events") if flag("stream") => Resource::EventStream(path),
            (3 | 10.., "events") => Resource::Events(path),
            (10.., "version") => Resource::Version,
            (10.., "attributes") => Resource::Attributes,
            (10.., "summary") => Resource::Summary(scope()?),
            (10.., "stats") => Resource::Stats(scope()?),
            (10.., "spec") => Resource::Spec(scope()?),
            (10.., "storage") => Resource::Storage,
            (10.., "appmetrics") => Resource::AppMetrics,
            (10.., "ps") => Resource::Processes(path),
            (11.., "machinestats") => Resource::MachineStats,
            _ => return Err(failed(format!("unknown request type {kind:?}"))),
        };
        let number = |key: &str| -> Result<Option<i64>, RestError> {
            let text = query.get(key).filter(|text| !text.is_empty());
            text.map(|text| text.parse().map_err(|_| failed(format!("{key} {text:?} is not a number")))).transpose()
        };
        let time = |key: &str, default: &str| -> Result<Option<Timestamp>, RestError> {
            let text = query.get(key).map_or(default, String::as_str);
            // Go's zero time.
            if text.is_empty() || text.starts_with("0001-01-01T00:00:00") {
                return Ok(None);
            }
            text.parse().map(Some).map_err(|_| failed(format!("{key} {text:?} is not a time")))
        };
        let default_count = if version < 10 { DEFAULT_SAMPLES.0 } else { DEFAULT_SAMPLES.1 };
        // A negative number means all.
        let count =
            body.num_stats.or(number("count")?).map_or(default_count, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let max_age = query.get("max_age").filter(|text| !text.is_empty());
        let max_age = max_age
            .map(|text| {
                duration::parse(text).ok_or_else(|| failed(format!("max_age {text:?} is not a duration like 10s")))
            })
            .transpose()?;
        let (from, to) = (time("start_time", &body.start)?, time("end_time", &body.end)?);
        Ok(Self { version, resource, count, from, to, max_age, query })
    }

    /// The maximal age of the newest sample.
    pub(crate) fn max_age(&self) -> Option<Duration> {
        self.max_age
    }

    /// The line of an event, empty if the request does not match it; `None` unless this is a stream request.
    pub(crate) fn stream_event(&self, event: &Event) -> Option<Vec<u8>> {
        let Resource::EventStream(path) = &self.resource else { return None };
        let line = self.render_event(path, event);
        Some(line.iter().flat_map(|one| format!("{one}\n").into_bytes()).collect())
    }

    /// Whether the response is a stream of future events.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.resource, Resource::EventStream(_))
    }

    /// Whether the response needs the list of processes.
    pub(crate) fn needs_processes(&self) -> bool {
        matches!(self.resource, Resource::Processes(_))
    }

    /// The processes of the requested cgroup.
    pub(crate) fn processes(&self, all: &[Process]) -> Value {
        let Resource::Processes(path) = &self.resource else { return Value::Null };
        all.iter().filter(|process| path == "/" || process.cgroup == *path).map(process_info).collect()
    }

    /// The ids of the histories that the response needs; an empty id is the machine's.
    pub(crate) fn history_ids(&self, view: &View) -> Result<Vec<String>, RestError> {
        let (Resource::Containers(scope)
        | Resource::Subcontainers(scope)
        | Resource::DockerContainers(scope)
        | Resource::Summary(scope)
        | Resource::Stats(scope)) = &self.resource
        else {
            return Ok(if self.resource == Resource::MachineStats { vec![String::new()] } else { Vec::new() });
        };
        Ok(find(view, scope)?.iter().filter_map(|found| found.past().map(str::to_owned)).collect())
    }

    /// # Errors
    /// 500 for an unknown container; as cAdvisor.
    pub(crate) fn answer(
        &self,
        view: &View,
        histories: &HashMap<String, Vec<Point>>,
        events: &[Event],
    ) -> Result<Value, RestError> {
        let past = |found: &Lookup<'_>| {
            let all = found.past().and_then(|id| histories.get(id)).map_or(&[][..], Vec::as_slice);
            self.within(all)
        };
        let by_name = |scope: &Scope, make: &dyn Fn(&Lookup<'_>) -> Value| -> Result<Value, RestError> {
            let all = find(view, scope)?;
            Ok(Value::Object(all.iter().map(|found| (found.name().to_owned(), make(found))).collect::<Map<_, _>>()))
        };
        let info = |found: &Lookup<'_>| stats::container_info(view, found, &past(found), self.count);
        let v2 = |found: &Lookup<'_>| stats::v2(view, found, &past(found), self.count);
        match &self.resource {
            Resource::Machine => Ok(machine::machine(view)),
            Resource::Containers(scope) => {
                find(view, scope)?.first().map(info).ok_or_else(|| failed("unknown container"))
            }
            Resource::Subcontainers(scope) => Ok(find(view, scope)?.iter().map(info).collect()),
            Resource::DockerContainers(scope) => by_name(scope, &info),
            Resource::Events(path) => Ok(self.events(path, events)),
            // Streamed, or rendered from the list of processes.
            Resource::EventStream(_) | Resource::Processes(_) => Ok(Value::Array(Vec::new())),
            Resource::Version => Ok(json!(env!("CARGO_PKG_VERSION"))),
            Resource::Attributes => Ok(machine::attributes(view)),
            Resource::Summary(scope) => by_name(scope, &|found| derived_stats::summary(found, &past(found))),
            Resource::Stats(scope) if self.version == 10 => by_name(scope, &v2),
            // The machine has a separate page in v2.1.
            Resource::Stats(scope) => {
                let all = find(view, scope)?;
                let named = all
                    .iter()
                    .filter(|found| found.row().is_some())
                    .map(|found| (found.name().to_owned(), json!({"spec": stats::spec_v2(found), "stats": v2(found)})));
                Ok(Value::Object(named.collect()))
            }
            Resource::Spec(scope) => by_name(scope, &stats::spec_v2),
            Resource::Storage => Ok(machine::storage(view, self.query.get("label").map(String::as_str))),
            Resource::AppMetrics => Ok(json!({})),
            Resource::MachineStats => Ok(machine::stats(view, &past(&Lookup::Machine(view)), self.count)),
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
        let most = most.map_or(DEFAULT_EVENTS, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let mut found: Vec<Value> = events
            .iter()
            .filter(|event| self.from.is_none_or(|from| event.at >= from) && self.to.is_none_or(|to| event.at <= to))
            .flat_map(|event| self.render_event(path, event))
            .collect();
        // Only the newest of them.
        found.drain(..found.len().saturating_sub(most));
        Value::Array(found)
    }

    /// An event in cAdvisor's form: none of another cgroup or type than requested, two for an OOM kill.
    fn render_event(&self, path: &str, event: &Event) -> Vec<Value> {
        let wants = |key: &str| self.query.get(key).or(self.query.get("all_events")).is_some_and(|v| v == "true");
        let below = self.query.get("subcontainers").is_some_and(|v| v == "true");
        if event.cgroup != path && !(below && is_below(&event.cgroup, path)) {
            return Vec::new();
        }
        let one = |kind: &str, cgroup: &str, data: Value| json!({"container_name": cgroup, "timestamp": event.at.to_string(), "event_type": kind, "event_data": data});
        let mut out = Vec::new();
        match &event.kind {
            EventType::Created if wants("creation_events") => {
                out.push(one("containerCreation", &event.cgroup, json!({})));
            }
            EventType::Deleted if wants("deletion_events") => {
                out.push(one("containerDeletion", &event.cgroup, json!({})));
            }
            EventType::Killed(kill) => {
                if wants("oom_events") {
                    out.push(one("oom", &event.cgroup, json!({})));
                }
                if wants("oom_kill_events") {
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

/// A process in cAdvisor's form.
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

/// The machine or a row.
#[derive(Debug, Clone, Copy)]
enum Lookup<'a> {
    Machine(&'a View),
    Row(&'a Row),
}

impl<'a> Lookup<'a> {
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

    /// The id of its history; a pod's own cgroup has none.
    fn past(&self) -> Option<&'a str> {
        match self {
            Self::Machine(_) => Some(""),
            Self::Row(row) => Some(row.target.container_id.as_str()).filter(|id| !id.is_empty()),
        }
    }
}

fn is_below(cgroup: &str, path: &str) -> bool {
    path == "/" || cgroup.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
}

fn find<'a>(view: &'a View, scope: &Scope) -> Result<Vec<Lookup<'a>>, RestError> {
    let snapshot = &view.snapshot;
    let rows = || snapshot.pods.values().chain(snapshot.rows.iter()).map(|row| Lookup::Row(row));
    let containers = || snapshot.rows.iter().map(|row| Lookup::Row(row));
    match scope {
        Scope::Cgroup { path, below } => {
            let machine = (path == "/").then_some(Lookup::Machine(view));
            let found: Vec<Lookup<'_>> = machine
                .into_iter()
                .chain(rows().filter(|found| found.name() == path || (*below && is_below(found.name(), path))))
                .collect();
            // A cgroup that only has children is not sampled, but it exists.
            let has_children = *below || rows().any(|found| is_below(found.name(), path));
            if found.is_empty() && !has_children {
                return Err(failed(format!("failed to get container {path:?}: unknown container {path:?}")));
            }
            Ok(found)
        }
        Scope::Docker(name) if name.is_empty() => Ok(containers().collect()),
        Scope::Docker(name) => {
            let named = |found: &Lookup<'_>| found.row().is_some_and(|row| row.target.name == *name);
            let of_id = |found: &Lookup<'_>| found.row().is_some_and(|row| row.target.container_id.starts_with(name));
            let found: Vec<Lookup<'_>> = containers().filter(named).collect();
            let found: Vec<Lookup<'_>> = if found.is_empty() { containers().filter(of_id).collect() } else { found };
            match found.len() {
                0 => Err(failed(format!("unable to find Docker container {name:?}"))),
                1 => Ok(found),
                _ => Err(failed(format!("unable to find container: {name:?} is the beginning of several ids"))),
            }
        }
    }
}
