//! Unmanaged containers: those that run on this node but belong to no pod. Their usage is reported too.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use bollard::{
    models::{ContainerInspectResponse, EventMessage, HealthStatusEnum, HostConfig},
    query_parameters::EventsOptions,
};
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use windlass_kit::{
    published_map::{Published, Publisher},
    repairs::{MainPath, Repair},
};

use super::{Engine, EngineError, docker_api::EVENTS, events, names};

/// Containers are listed again this often, in case an event was lost.
const RELIST_INTERVAL: Duration = Duration::from_secs(300);
/// Delay between attempts to reach Docker.
const RECONNECT_DELAY: Duration = Duration::from_secs(5);

/// Docker's events that add, remove or change a container.
const WATCHED_EVENTS: [&str; 6] = ["start", "die", "destroy", "health_status", "rename", "update"];

/// A running container that belongs to no pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmanagedContainer {
    /// Docker's id, 64 hex digits.
    pub id: String,
    /// Its init process, in the host's PID namespace.
    pub pid: i32,
    /// Docker's name, without its slash.
    pub name: String,
    /// The image as the container names it.
    pub image: String,
    /// Since when it runs.
    pub started_at: Timestamp,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Docker's restart count.
    pub restarts: u64,
    /// The result of its health check; `None` without one.
    pub healthy: Option<bool>,
    /// It shares the network namespace of another container, where the traffic is counted.
    pub shares_network: bool,
    /// All its limits in the order of [`limits`]: a different list means that they were updated.
    pub limits: Vec<i64>,
}

/// The limits of a container that an update may change.
fn limits(host: &HostConfig) -> Vec<i64> {
    [
        host.memory,
        host.memory_reservation,
        host.memory_swap,
        host.cpu_shares,
        host.cpu_period,
        host.cpu_quota,
        host.nano_cpus,
        host.pids_limit,
    ]
    .map(|limit| limit.unwrap_or(0))
    .to_vec()
}

impl UnmanagedContainer {
    /// Reads Docker's response; `None` for containers that do not run and those of pods.
    fn read(answer: ContainerInspectResponse) -> Option<Self> {
        let state = answer.state?;
        let pid = i32::try_from(state.pid?).ok().filter(|pid| *pid > 0)?;
        let config = answer.config.unwrap_or_default();
        let labels: BTreeMap<String, String> = config.labels.unwrap_or_default().into_iter().collect();
        if labels.contains_key(names::TYPE) {
            return None;
        }
        let host = answer.host_config.unwrap_or_default();
        let health = state.health.and_then(|health| health.status);
        Some(Self {
            id: answer.id?,
            pid,
            name: answer.name.unwrap_or_default().trim_start_matches('/').to_owned(),
            image: config.image.unwrap_or_default(),
            started_at: state.started_at.and_then(|at| at.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH),
            labels,
            restarts: answer.restart_count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0),
            healthy: match health {
                None | Some(HealthStatusEnum::EMPTY | HealthStatusEnum::NONE) => None,
                Some(status) => Some(status == HealthStatusEnum::HEALTHY),
            },
            limits: limits(&host),
            shares_network: host.network_mode.unwrap_or_default().starts_with("container:"),
        })
    }
}

/// The unmanaged containers that run, by id.
pub type Unmanaged = Published<Arc<str>, Arc<UnmanagedContainer>>;
/// Publishes the unmanaged containers, by id.
pub type UnmanagedPublisher = Publisher<Arc<str>, Arc<UnmanagedContainer>>;

/// Publishes the unmanaged containers until `shutdown`.
pub async fn watch_all(engine: Engine, publish: UnmanagedPublisher, shutdown: CancellationToken) {
    loop {
        let mut known = BTreeMap::new();
        tokio::select! {
            () = shutdown.cancelled() => return,
            ended = engine.watch_unmanaged(&mut known, &publish) => if let Err(error) = ended {
                tracing::debug!(%error, "failed to watch unmanaged containers; retrying");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RECONNECT_DELAY) => {}
        }
    }
}

impl Engine {
    async fn watch_unmanaged(
        &self,
        known: &mut BTreeMap<String, UnmanagedContainer>,
        publish: &UnmanagedPublisher,
    ) -> Result<(), EngineError> {
        // Since before the list, so that no event falls between.
        let mut events = Box::pin(self.events_of_others());
        let mut relist = tokio::time::interval(Repair::UnmanagedRelist.period(RELIST_INTERVAL));
        loop {
            tokio::select! {
                _ = relist.tick() => {
                    self.list_unmanaged(known).await?;
                    let by_id = |(id, container): (&String, &UnmanagedContainer)| {
                        (Arc::from(id.as_str()), Arc::new(container.clone()))
                    };
                    publish.replace(known.iter().map(by_id).collect());
                }
                event = events.next() => {
                    let Some(event) = event else { return Ok(()) };
                    let event = event.map_err(|e| EngineError::new("Docker's events could not be followed", &e))?;
                    if MainPath::EngineEvents.is_off() {
                        continue;
                    }
                    let Some(actor) = event.actor else { continue };
                    let of_pod = actor.attributes.is_some_and(|labels| labels.contains_key(names::TYPE));
                    let (Some(id), false) = (actor.id, of_pod) else { continue };
                    let runs = match event.action.as_deref() {
                        Some("die" | "destroy") => None,
                        _ => self.inspect_or_keep(&id, known).await,
                    };
                    if let Some(container) = runs {
                        publish.set(Arc::from(id.as_str()), Arc::new(container.clone()));
                        known.insert(id, container);
                    } else {
                        publish.remove(id.as_str());
                        known.remove(&id);
                    }
                }
            }
        }
    }

    /// Events of all containers, ours and others', that add, remove or change one.
    pub(super) fn events_of_others(
        &self,
    ) -> impl Stream<Item = Result<EventMessage, bollard::errors::Error>> + Send + use<> {
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            ("event".to_owned(), WATCHED_EVENTS.map(str::to_owned).to_vec()),
        ]);
        let options = EventsOptions { filters: Some(filters), since: Some(events::now()), ..EventsOptions::default() };
        self.patient(EVENTS.limit).events(Some(options))
    }

    /// Compares the known containers with the running ones, by id; changes within a container arrive as events. Returns
    /// whether anything was new.
    async fn list_unmanaged(&self, known: &mut BTreeMap<String, UnmanagedContainer>) -> Result<bool, EngineError> {
        let all = self.listed("the containers that run could not be listed", None).await?;
        let is_of_pod = |labels: &HashMap<String, String>| labels.contains_key(names::TYPE);
        let listed: BTreeSet<String> = all
            .into_iter()
            .filter(|container| !container.labels.as_ref().is_some_and(is_of_pod))
            .filter_map(|container| container.id)
            .collect();
        let before = known.len();
        known.retain(|id, _| listed.contains(id));
        let mut changed = known.len() != before;
        for id in listed {
            if !known.contains_key(&id)
                && let Some(unmanaged) = self.inspect_or_keep(&id, known).await
            {
                known.insert(id, unmanaged);
                changed = true;
            }
        }
        Ok(changed)
    }

    /// One container that Docker cannot inspect must not hide the others: it stays as it was known, or is left out until
    /// the next list.
    async fn inspect_or_keep(
        &self,
        id: &str,
        known: &BTreeMap<String, UnmanagedContainer>,
    ) -> Option<UnmanagedContainer> {
        self.inspect_unmanaged(id).await.unwrap_or_else(|error| {
            tracing::warn!(%error, container = id, "failed to inspect a container outside of pods; its usage may be missing");
            known.get(id).cloned()
        })
    }

    async fn inspect_unmanaged(&self, id: &str) -> Result<Option<UnmanagedContainer>, EngineError> {
        Ok(self.inspected(id).await?.and_then(UnmanagedContainer::read))
    }
}

#[cfg(test)]
impl Engine {
    /// Those that run now.
    pub(super) async fn unmanaged_now(&self) -> Result<Vec<UnmanagedContainer>, EngineError> {
        let mut known = BTreeMap::new();
        self.list_unmanaged(&mut known).await?;
        Ok(known.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fake;

    #[tokio::test]
    async fn a_relist_looks_at_what_is_new_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let engine = fake::scripted(dir.path(), move |line| {
            let path = line.split([' ', '?']).nth(1).unwrap().to_owned();
            let body = match path.as_str() {
                "/containers/json" => {
                    format!(r#"[{{"Id":"a"}},{{"Id":"b"}},{{"Id":"p","Labels":{{"{}":"container"}}}}]"#, names::TYPE)
                }
                _ => format!(r#"{{"Id":"{}","State":{{"Pid":1}}}}"#, path.split('/').nth(2).unwrap()),
            };
            lines.send(path).unwrap();
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        });
        let gone = read(r#"{"Id":"gone","State":{"Pid":1}}"#).unwrap();
        let mut known = BTreeMap::from([("gone".to_owned(), gone)]);
        assert!(engine.list_unmanaged(&mut known).await.unwrap());
        assert_eq!(known.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(!engine.list_unmanaged(&mut known).await.unwrap(), "nothing is new");
        let mut paths = Vec::new();
        while let Ok(path) = asked.try_recv() {
            paths.push(path);
        }
        assert_eq!(paths, ["/containers/json", "/containers/a/json", "/containers/b/json", "/containers/json"]);
    }

    fn read(json: &str) -> Option<UnmanagedContainer> {
        UnmanagedContainer::read(serde_json::from_str(json).unwrap())
    }

    #[tokio::test]
    async fn one_that_cannot_be_inspected_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let engine = fake::scripted(dir.path(), |line| {
            if line.contains("/containers/json") {
                return fake::json(200, r#"[{"Id":"good"},{"Id":"bad"},{"Id":"gone"}]"#);
            }
            if line.contains("/good/") {
                return fake::json(200, r#"{"Id":"good","Name":"/web","State":{"Pid":42}}"#);
            }
            let code = if line.contains("/gone/") { 404 } else { 500 };
            fake::json(code, r#"{"message":"broken metadata"}"#)
        });
        let mut known = BTreeMap::new();
        assert!(engine.list_unmanaged(&mut known).await.unwrap());
        assert_eq!(known.keys().collect::<Vec<_>>(), ["good"]);
        let before = read(r#"{"Id":"bad","Name":"/db","State":{"Pid":7}}"#).unwrap();
        known.insert("bad".to_owned(), before.clone());
        assert!(!engine.list_unmanaged(&mut known).await.unwrap());
        assert_eq!(known.keys().collect::<Vec<_>>(), ["bad", "good"], "what was known of it holds, until it is gone");
        assert_eq!(engine.inspect_or_keep("bad", &known).await, Some(before));
        assert_eq!(engine.inspect_or_keep("gone", &known).await, None);
    }

    #[test]
    fn unmanaged_containers_are_read() {
        let found = read(
            r#"{"Id":"abc","Name":"/web","RestartCount":2,"HostConfig":{"NetworkMode":"container:xyz"},
                "State":{"Pid":42,"StartedAt":"2026-02-03T04:05:06Z","Health":{"Status":"starting"}},
                "Config":{"Image":"nginx:1","Labels":{"a":"b"}}}"#,
        )
        .unwrap();
        assert_eq!((found.name.as_str(), found.pid, found.restarts, found.healthy), ("web", 42, 2, Some(false)));
        assert_eq!((found.image.as_str(), found.labels["a"].as_str(), found.shares_network), ("nginx:1", "b", true));
        let updated = |memory: u64| {
            let host = format!(r#"{{"Memory":{memory},"PidsLimit":9}}"#);
            read(&format!(r#"{{"Id":"abc","State":{{"Pid":42}},"HostConfig":{host}}}"#)).unwrap()
        };
        assert!(updated(1) == updated(1) && updated(1) != updated(2), "another limit is a change");
        let plain = read(r#"{"Id":"abc","Name":"/web","State":{"Pid":42,"Health":{"Status":"none"}}}"#).unwrap();
        assert_eq!((plain.healthy, plain.shares_network), (None, false));
        assert_eq!(read(r#"{"Id":"abc","State":{"Pid":0}}"#), None);
        let of_pod =
            format!(r#"{{"Id":"abc","State":{{"Pid":1}},"Config":{{"Labels":{{"{}":"container"}}}}}}"#, names::TYPE);
        assert_eq!(read(&of_pod), None);
    }
}
