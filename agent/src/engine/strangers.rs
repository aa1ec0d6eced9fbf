//! Containers that run beside those of pods: whoever started them, their usage is told too.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bollard::{
    models::{ContainerInspectResponse, HealthStatusEnum, HostConfig},
    query_parameters::{EventsOptions, InspectContainerOptions, ListContainersOptions},
};
use futures::StreamExt as _;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Engine, EngineError, events, names};

/// Everything is listed this often, in case an event was lost.
const RELIST: Duration = Duration::from_secs(300);
/// Between attempts to reach Docker.
const RECONNECT: Duration = Duration::from_secs(5);

/// Docker's events that tell another container, or another state of one.
const NEWS: [&str; 6] = ["start", "die", "destroy", "health_status", "rename", "update"];

/// A container that belongs to no pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// Docker's id, 64 hex digits.
    pub id: String,
    /// The first process, in the host's numbering.
    pub pid: i32,
    /// Docker's name, without its slash.
    pub name: String,
    /// The image as it was named.
    pub image: String,
    /// Since when it runs.
    pub started_at: Timestamp,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// How often Docker has started it again.
    pub restarts: u64,
    /// What its own check says; nothing without one.
    pub healthy: Option<bool>,
    /// Lives in another container's network, whose traffic is told there.
    pub shares_network: bool,
    /// All that Docker says it is held to: another list means other limits.
    pub held_to: Vec<i64>,
}

/// What an update of a container can hold it to.
fn held_to(host: &HostConfig) -> Vec<i64> {
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

impl Stranger {
    /// Reads Docker's answer; nothing of what does not run and of containers of pods.
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
            held_to: held_to(&host),
            shares_network: host.network_mode.unwrap_or_default().starts_with("container:"),
        })
    }
}

/// Tells which containers run beside those of pods, until `shutdown`.
pub async fn follow(engine: Engine, tell: watch::Sender<Arc<Vec<Stranger>>>, shutdown: CancellationToken) {
    loop {
        let mut known = BTreeMap::new();
        tokio::select! {
            () = shutdown.cancelled() => return,
            ended = engine.follow_strangers(&mut known, &tell) => if let Err(error) = ended {
                tracing::debug!(%error, "containers outside pods are asked for again in a moment");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RECONNECT) => {}
        }
    }
}

impl Engine {
    async fn follow_strangers(
        &self,
        known: &mut BTreeMap<String, Stranger>,
        tell: &watch::Sender<Arc<Vec<Stranger>>>,
    ) -> Result<(), EngineError> {
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            ("event".to_owned(), NEWS.map(str::to_owned).to_vec()),
        ]);
        // Of the time before the list, so that nothing falls between.
        let options = EventsOptions { filters: Some(filters), since: Some(events::now()), ..EventsOptions::default() };
        let mut events = self.docker().events(Some(options));
        let mut relist = tokio::time::interval(RELIST);
        loop {
            let changed = tokio::select! {
                _ = relist.tick() => {
                    *known = self.strangers().await?;
                    true
                }
                event = events.next() => {
                    let Some(event) = event else { return Ok(()) };
                    let event = event.map_err(|e| EngineError::new("Docker's events could not be followed", &e))?;
                    let Some(actor) = event.actor else { continue };
                    let of_pod = actor.attributes.is_some_and(|labels| labels.contains_key(names::TYPE));
                    let (Some(id), false) = (actor.id, of_pod) else { continue };
                    match event.action.as_deref() {
                        Some("die" | "destroy") => known.remove(&id).is_some(),
                        _ => match self.stranger(&id).await? {
                            Some(stranger) => known.insert(id, stranger.clone()).as_ref() != Some(&stranger),
                            None => known.remove(&id).is_some(),
                        },
                    }
                }
            };
            if changed {
                tell.send_replace(Arc::new(known.values().cloned().collect()));
            }
        }
    }

    async fn strangers(&self) -> Result<BTreeMap<String, Stranger>, EngineError> {
        let all = self.docker().list_containers(None::<ListContainersOptions>).await;
        let all = all.map_err(|e| EngineError::new("the containers that run could not be listed", &e))?;
        let mut found = BTreeMap::new();
        for container in all {
            let of_pod = container.labels.is_some_and(|labels| labels.contains_key(names::TYPE));
            if let (Some(id), false) = (container.id, of_pod)
                && let Some(stranger) = self.stranger(&id).await?
            {
                found.insert(id, stranger);
            }
        }
        Ok(found)
    }

    async fn stranger(&self, id: &str) -> Result<Option<Stranger>, EngineError> {
        match self.docker().inspect_container(id, None::<InspectContainerOptions>).await {
            Ok(answer) => Ok(Stranger::read(answer)),
            Err(error) => {
                let error = EngineError::new(format!("container {id} could not be inspected"), &error);
                if error.is_not_found() { Ok(None) } else { Err(error) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<Stranger> {
        Stranger::read(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn what_runs_outside_pods_is_read() {
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
        assert!(updated(1) == updated(1) && updated(1) != updated(2), "another limit is another container to be told");
        let plain = read(r#"{"Id":"abc","Name":"/web","State":{"Pid":42,"Health":{"Status":"none"}}}"#).unwrap();
        assert_eq!((plain.healthy, plain.shares_network), (None, false));
        assert_eq!(read(r#"{"Id":"abc","State":{"Pid":0}}"#), None);
        let of_pod =
            format!(r#"{{"Id":"abc","State":{{"Pid":1}},"Config":{{"Labels":{{"{}":"container"}}}}}}"#, names::TYPE);
        assert_eq!(read(&of_pod), None);
    }
}
