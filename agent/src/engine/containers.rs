//! Calls that create, start, stop and remove containers, and list or inspect them. Callers bound how many run at once,
//! since Docker serialises much of its work.

use std::{collections::HashMap, time::Duration};

use bollard::{
    models::{ContainerCreateBody, ContainerUpdateBody},
    query_parameters::{
        CreateContainerOptions, InspectContainerOptions, KillContainerOptions, ListContainersOptions,
        RemoveContainerOptions, StartContainerOptions, StopContainerOptions,
    },
};

use super::{
    Engine, EngineError,
    inspect::{Instance, Limits},
    names,
};
use crate::cgroup::{limits::CPU_PERIOD, tree::Resource};

/// An entry of Docker's list of containers, which needs no inspection of each.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) pod_uid: String,
    pub(crate) running: bool,
    /// A helper container: never started, it gives access to the files of its image.
    pub(crate) helper: bool,
    /// Seconds since 1970.
    pub(crate) created: i64,
}

impl Engine {
    /// Creates a container. A name that a crash has left taken is freed first, and the call retried.
    pub(crate) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, EngineError> {
        let attempt = || format!("container {name} could not be created");
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
        let first = self.docker().create_container(Some(options.clone()), body.clone());
        match self.counted("create_container", first).await {
            Ok(made) => return Ok(made.id),
            Err(error) if EngineError::new("", &error).status() == Some(409) => {}
            Err(error) => return Err(EngineError::new(attempt(), &error)),
        }
        self.remove(name).await?;
        let again = self.docker().create_container(Some(options), body);
        let made = self.counted("create_container", again).await.map_err(|e| EngineError::new(attempt(), &e))?;
        Ok(made.id)
    }

    pub(crate) async fn start(&self, id: &str) -> Result<(), EngineError> {
        self.counted("start_container", self.docker().start_container(id, None::<StartContainerOptions>))
            .await
            .map_err(|e| EngineError::new(format!("container {} could not be started", short(id)), &e))
    }

    /// Changes the limits of one resource of a running container.
    pub(crate) async fn update(&self, id: &str, limits: &Limits, resource: Resource) -> Result<(), EngineError> {
        // To Docker a missing value means no change. A memory limit can be changed but not removed.
        let memory = (limits.memory > 0).then_some(limits.memory);
        let body = match resource {
            // No swap: the limit of memory and swap must grow with that of memory, or Docker refuses.
            Resource::Memory => ContainerUpdateBody { memory, memory_swap: memory, ..ContainerUpdateBody::default() },
            Resource::Cpu => ContainerUpdateBody {
                cpu_shares: Some(limits.cpu_shares),
                cpu_quota: Some(if limits.cpu_quota > 0 { limits.cpu_quota } else { -1 }),
                cpu_period: Some(CPU_PERIOD),
                ..ContainerUpdateBody::default()
            },
        };
        self.counted("update_container", self.docker().update_container(id, body))
            .await
            .map_err(|e| EngineError::new(format!("container {} could not be resized", short(id)), &e))
    }

    /// Inspects a container; `None` when it does not exist or carries no labels of ours.
    pub(crate) async fn inspect(&self, id: &str) -> Result<Option<Instance>, EngineError> {
        let look = self.docker().inspect_container(id, None::<InspectContainerOptions>);
        match self.counted("container_status", look).await {
            Ok(answer) => Ok(Instance::read(&answer)),
            Err(error) => {
                let error = EngineError::new(format!("container {} could not be inspected", short(id)), &error);
                if error.is_not_found() { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Stops a container: SIGTERM, and SIGKILL after `grace`. One that does not exist or has exited is success.
    pub(crate) async fn stop(&self, id: &str, grace: Duration) -> Result<(), EngineError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptions { t: Some(seconds), ..StopContainerOptions::default() };
        let patient = self.patient(grace.saturating_add(Duration::from_secs(60)));
        ignore_absent(self.counted("stop_container", patient.stop_container(id, Some(options))).await, || {
            format!("container {} could not be stopped", short(id))
        })
    }

    /// Kills a container at once. One that does not exist or has exited is success.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), EngineError> {
        let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
        ignore_absent(self.counted("kill_container", self.docker().kill_container(id, Some(options))).await, || {
            format!("container {} could not be killed", short(id))
        })
    }

    /// Removes a container, running or not, with its anonymous volumes. One that does not exist is success.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        ignore_absent(self.counted("remove_container", self.docker().remove_container(id, Some(options))).await, || {
            format!("container {} could not be removed", short(id))
        })
    }

    /// Every container with our labels, in any state.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        let filters = HashMap::from([("label".to_owned(), vec![names::TYPE.to_owned()])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let all = self
            .counted("list_containers", self.docker().list_containers(Some(options)))
            .await
            .map_err(|e| EngineError::new("the containers of pods could not be listed", &e))?;
        Ok(all
            .into_iter()
            .filter_map(|c| {
                let labels = c.labels?;
                // A container has the labels of its image, too, so that these alone do not make it one of ours: those
                // of pods have names of their own, and a helper is never started.
                let never_started = c.state == Some(bollard::models::ContainerSummaryStateEnum::CREATED);
                let helper = never_started && labels.get(names::TYPE).is_some_and(|kind| kind == names::TYPE_HELPER);
                if !helper && !c.names.iter().flatten().any(|name| names::is_pods_name(name)) {
                    return None;
                }
                Some(Listed {
                    id: c.id?,
                    pod_uid: labels.get(names::POD_UID).cloned().or_else(|| helper.then(String::new))?,
                    helper,
                    created: c.created.unwrap_or(i64::MAX),
                    running: c.state == Some(bollard::models::ContainerSummaryStateEnum::RUNNING),
                })
            })
            .collect())
    }

    /// Pings Docker, which costs it nothing.
    pub(crate) async fn ping(&self) -> Result<(), EngineError> {
        let docker = self.patient(Duration::from_secs(10));
        let pong = self.counted("status", docker.ping()).await;
        pong.map(drop).map_err(|e| EngineError::new("Docker could not be pinged", &e))
    }

    /// Docker's version, cgroup driver and runtimes; also how the agent learns whether Docker answers.
    pub(crate) async fn info(&self) -> Result<Info, EngineError> {
        let docker = self.patient(Duration::from_secs(10));
        let info = self
            .counted("version", docker.info())
            .await
            .map_err(|e| EngineError::new("Docker could not be asked for its state", &e))?;
        Ok(Info {
            version: info.server_version.unwrap_or_default(),
            systemd_cgroups: info.cgroup_driver.is_some_and(|d| d.to_string() == "systemd"),
            runtimes: info.runtimes.into_iter().flat_map(std::collections::HashMap::into_keys).collect(),
        })
    }
}

/// What the agent needs of Docker's `GET /info`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) version: String,
    pub(crate) systemd_cgroups: bool,
    /// Names of runtimes, which RuntimeClasses may name as their handlers.
    pub(crate) runtimes: std::collections::BTreeSet<String>,
}

/// Takes 304 (exited already), 404 (not found) and 409 (being removed, or not running) for success.
fn ignore_absent(
    result: Result<(), bollard::errors::Error>,
    attempt: impl FnOnce() -> String,
) -> Result<(), EngineError> {
    match result {
        Ok(()) => Ok(()),
        Err(error) => {
            let error = EngineError::new(attempt(), &error);
            if matches!(error.status(), Some(304 | 404 | 409)) { Ok(()) } else { Err(error) }
        }
    }
}

/// The first twelve digits of an id, as Docker's own tools show it.
pub(crate) fn short(id: &str) -> &str {
    if id.len() == 64 { &id[..12] } else { id }
}
