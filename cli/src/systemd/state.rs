//! Computes the status and liveness of the process. Pure.

use std::time::Duration;

use windlass_agent::engine::Health;
use windlass_kit::liveness::StuckLoop;

use crate::assemble::NodeReadiness;

/// The time limit of startup before the parts run: reading the store, binding ports, the first call of Docker.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// The API of this process is down if it has not answered for so long, and slow before.
const API_TIMEOUT: Duration = Duration::from_secs(60);
const API_SLOW_AFTER: Duration = Duration::from_secs(15);
/// A stuck pod worker affects its pod only (its volume may hang on an unreachable server), and would after a restart
/// too.
const POD_WORKER: &str = "pod worker";

/// What the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceKind {
    Node,
    Api,
    Proxy,
}

/// The phase of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The parts are being started.
    Starting,
    /// All parts run.
    Started,
    /// The settings are being reloaded.
    Reloading,
    Stopping,
}

/// The inputs of the state.
#[derive(Debug, Clone)]
pub(super) struct StateInputs {
    pub(super) kind: ServiceKind,
    pub(super) phase: Phase,
    /// Since the process started.
    pub(super) age: Duration,
    pub(super) docker: Health,
    pub(super) pods: usize,
    pub(super) readiness: NodeReadiness,
    /// How long the API of this process has not answered; `None` if it has none.
    pub(super) api_unanswered_for: Option<Duration>,
    /// Loops without a heartbeat for too long.
    pub(super) stuck: Vec<StuckLoop>,
    /// A loop without a heartbeat for longer fails the liveness of the process. Longer than requests to a remote API
    /// may take.
    pub(super) stuck_after: Duration,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) status: String,
    /// All loops make progress and the API answers, so the watchdog is pinged.
    pub(super) alive: bool,
    /// Startup is not finished.
    pub(super) starting: bool,
}

pub(super) fn evaluate(inputs: &StateInputs) -> State {
    let liveness_failure = liveness_failure(inputs);
    let mut status = match &liveness_failure {
        Some(what) => format!("hangs: {what}"),
        None => status_text(inputs),
    };
    let others: Vec<String> =
        inputs.stuck.iter().map(ToString::to_string).filter(|one| !status.contains(one.as_str())).collect();
    if !others.is_empty() {
        status.push_str(&format!("; stuck: {}", others.join(", ")));
    }
    // A line break would end the message.
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    let starting = inputs.phase == Phase::Starting;
    State { status, alive: liveness_failure.is_none(), starting }
}

/// Why the process is not alive, so that only a restart helps.
fn liveness_failure(inputs: &StateInputs) -> Option<String> {
    if inputs.phase == Phase::Starting && inputs.age > START_TIMEOUT {
        return Some(format!("startup has not finished after {} s", inputs.age.as_secs()));
    }
    if let Some(silent) = inputs.api_unanswered_for.filter(|silent| *silent > API_TIMEOUT) {
        return Some(format!("the API has not answered for {} s", silent.as_secs()));
    }
    let lost = inputs.stuck.iter().find(|one| one.name != POD_WORKER && one.since_report > inputs.stuck_after);
    lost.map(ToString::to_string)
}

fn status_text(inputs: &StateInputs) -> String {
    let late = inputs.api_unanswered_for.filter(|silent| *silent > API_SLOW_AFTER);
    match (inputs.phase, &inputs.docker) {
        (Phase::Stopping, _) => "ending; pods, rules and traffic go on".to_owned(),
        (Phase::Reloading, _) => "reading the settings again".to_owned(),
        (Phase::Starting, _) => "starting".to_owned(),
        (_, _) if late.is_some() => {
            format!("the API has not answered for {} s", late.unwrap_or_default().as_secs())
        }
        (_, _) if inputs.kind == ServiceKind::Api => "the API is served".to_owned(),
        (_, _) if inputs.kind == ServiceKind::Proxy => "the rules of services are kept".to_owned(),
        (_, Health::Unknown) => "waiting for Docker and the API".to_owned(),
        (_, Health::Down { reason }) if inputs.pods == 0 => format!("waiting for Docker: {reason}"),
        (_, Health::Down { reason }) => {
            format!("Docker does not answer, {} left alone: {reason}", pods(inputs.pods))
        }
        (_, Health::Up { .. }) => match &inputs.readiness {
            NodeReadiness::Ready => format!("Ready with {}", pods(inputs.pods)),
            NodeReadiness::NotReady(why) if why.is_empty() => format!("not Ready, with {}", pods(inputs.pods)),
            NodeReadiness::NotReady(why) => format!("not Ready, with {}: {why}", pods(inputs.pods)),
            NodeReadiness::Unknown => "waiting for the API to call the node Ready".to_owned(),
        },
    }
}

fn pods(count: usize) -> String {
    match count {
        1 => "1 pod".to_owned(),
        count => format!("{count} pods"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(phase: Phase) -> StateInputs {
        StateInputs {
            kind: ServiceKind::Node,
            phase,
            age: Duration::from_secs(1),
            docker: Health::Up { version: "20".into() },
            pods: 2,
            readiness: NodeReadiness::Ready,
            api_unanswered_for: Some(Duration::ZERO),
            stuck: Vec::new(),
            stuck_after: Duration::from_secs(300),
        }
    }

    fn stuck(name: &'static str, seconds: u64) -> Vec<StuckLoop> {
        vec![StuckLoop { name, instance: String::new(), since_report: Duration::from_secs(seconds) }]
    }

    #[test]
    fn status_and_liveness_by_state() {
        let down = Health::Down { reason: "no\nsocket".into() };
        let silent = |seconds| Some(Duration::from_secs(seconds));
        let far = Duration::from_secs(600);
        for (inputs, status, alive, starting) in [
            (inputs(Phase::Starting), "starting", true, true),
            (
                StateInputs { age: Duration::from_secs(601), ..inputs(Phase::Starting) },
                "hangs: startup has not finished after 601 s",
                false,
                true,
            ),
            // Waiting for others has no limit, and is no start.
            (
                StateInputs {
                    age: Duration::from_secs(90_000),
                    docker: down.clone(),
                    pods: 0,
                    ..inputs(Phase::Started)
                },
                "waiting for Docker: no socket",
                true,
                false,
            ),
            (
                StateInputs { docker: Health::Unknown, ..inputs(Phase::Started) },
                "waiting for Docker and the API",
                true,
                false,
            ),
            (
                StateInputs { readiness: NodeReadiness::Unknown, ..inputs(Phase::Started) },
                "waiting for the API to call the node Ready",
                true,
                false,
            ),
            (
                StateInputs { readiness: NodeReadiness::NotReady("no\nnetwork".into()), ..inputs(Phase::Started) },
                "not Ready, with 2 pods: no network",
                true,
                false,
            ),
            (inputs(Phase::Started), "Ready with 2 pods", true, false),
            (StateInputs { pods: 1, ..inputs(Phase::Started) }, "Ready with 1 pod", true, false),
            // A restart does not help if Docker hangs.
            (
                StateInputs { docker: down, ..inputs(Phase::Started) },
                "Docker does not answer, 2 pods left alone: no socket",
                true,
                false,
            ),
            (
                StateInputs { api_unanswered_for: silent(15), ..inputs(Phase::Started) },
                "Ready with 2 pods",
                true,
                false,
            ),
            (
                StateInputs { api_unanswered_for: silent(16), ..inputs(Phase::Started) },
                "the API has not answered for 16 s",
                true,
                false,
            ),
            (
                StateInputs { api_unanswered_for: silent(61), ..inputs(Phase::Started) },
                "hangs: the API has not answered for 61 s",
                false,
                false,
            ),
            // A remote API.
            (StateInputs { api_unanswered_for: None, ..inputs(Phase::Started) }, "Ready with 2 pods", true, false),
            (
                StateInputs { stuck: stuck("pods", 301), ..inputs(Phase::Started) },
                "hangs: pods has not moved for 301 s",
                false,
                false,
            ),
            (
                StateInputs { stuck: stuck("pod worker", 9000), ..inputs(Phase::Started) },
                "Ready with 2 pods; stuck: pod worker has not moved for 9000 s",
                true,
                false,
            ),
            (
                StateInputs { stuck: stuck("node lease", 301), stuck_after: far, ..inputs(Phase::Started) },
                "Ready with 2 pods; stuck: node lease has not moved for 301 s",
                true,
                false,
            ),
            (
                StateInputs { stuck: stuck("node lease", 601), stuck_after: far, ..inputs(Phase::Started) },
                "hangs: node lease has not moved for 601 s",
                false,
                false,
            ),
            (inputs(Phase::Reloading), "reading the settings again", true, false),
            (inputs(Phase::Stopping), "ending; pods, rules and traffic go on", true, false),
            (StateInputs { kind: ServiceKind::Api, ..inputs(Phase::Started) }, "the API is served", true, false),
            (
                StateInputs { kind: ServiceKind::Proxy, ..inputs(Phase::Started) },
                "the rules of services are kept",
                true,
                false,
            ),
        ] {
            assert_eq!(evaluate(&inputs), State { status: status.to_owned(), alive, starting }, "{inputs:?}");
        }
    }

    #[test]
    fn stuck_loops_are_named_beside_the_failure() {
        let both = [stuck("pod worker", 400), stuck("pods", 301)].concat();
        let words = evaluate(&StateInputs { stuck: both, ..inputs(Phase::Started) });
        assert_eq!(words.status, "hangs: pods has not moved for 301 s; stuck: pod worker has not moved for 400 s");
    }
}
