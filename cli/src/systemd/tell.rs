//! What the service manager is told of what is known at one moment. Pure.

use std::time::Duration;

use windlass_agent::engine::Health;
use windlass_kit::liveness::StuckLoop;

/// How long the first steps may take: a store that is read, ports that are taken, Docker that is asked its first
/// question. Whoever needs longer is taken to hang.
const OPENING: Duration = Duration::from_secs(600);
/// Our own API may be silent for this long before it is taken to hang; one that is told of is not yet one that hangs.
const API_SILENT: Duration = Duration::from_secs(60);
const API_LATE: Duration = Duration::from_secs(15);
/// A stuck pod is that pod's alone (its volume may hang with a server far away): a new start would end up the same.
const OF_ONE_POD: &str = "pod worker";

/// What runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Node,
    Api,
    Proxy,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The parts are being put together.
    Opening,
    /// All parts run; the node is not Ready yet.
    Waiting,
    /// It was Ready once.
    Ready,
    /// The settings are read again.
    Reloading,
    Ending,
}

/// What is known.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    pub(super) phase: Phase,
    /// Since the process began.
    pub(super) age: Duration,
    pub(super) docker: Health,
    pub(super) pods: usize,
    /// For how long our own API has not answered; nothing where it is not in this process.
    pub(super) api_silent: Option<Duration>,
    /// Loops that have not moved for too long.
    pub(super) stuck: Vec<StuckLoop>,
    /// How long a loop may be silent before the process hangs. An API far away that swallows requests may hold one for
    /// longer than one in this process.
    pub(super) patience: Duration,
}

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) status: String,
    /// All loops that count move, and the API answers: the watchdog is kept quiet.
    pub(super) alive: bool,
    /// The start takes its time.
    pub(super) starting: bool,
}

pub(super) fn tell(facts: &Facts) -> Words {
    let hung = hung(facts);
    let mut status = match &hung {
        Some(what) => format!("hangs: {what}"),
        None => state(facts),
    };
    let others: Vec<String> =
        facts.stuck.iter().map(ToString::to_string).filter(|one| !status.contains(one.as_str())).collect();
    if !others.is_empty() {
        status.push_str(&format!("; stuck: {}", others.join(", ")));
    }
    // A line of its own ends the message.
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    let starting = matches!(facts.phase, Phase::Opening | Phase::Waiting);
    Words { status, alive: hung.is_none(), starting }
}

/// What makes the process one that hangs, so that only a new start helps.
fn hung(facts: &Facts) -> Option<String> {
    if facts.phase == Phase::Opening && facts.age > OPENING {
        return Some(format!("nothing was put together in {} s", facts.age.as_secs()));
    }
    if let Some(silent) = facts.api_silent.filter(|silent| *silent > API_SILENT) {
        return Some(format!("the API has not answered for {} s", silent.as_secs()));
    }
    let lost = facts.stuck.iter().find(|one| one.name != OF_ONE_POD && one.since_report > facts.patience);
    lost.map(ToString::to_string)
}

fn state(facts: &Facts) -> String {
    let late = facts.api_silent.filter(|silent| *silent > API_LATE);
    match (facts.phase, &facts.docker) {
        (Phase::Ending, _) => "ending; pods, rules and traffic go on".to_owned(),
        (Phase::Reloading, _) => "reading the settings again".to_owned(),
        (Phase::Opening, _) => "starting".to_owned(),
        (_, _) if late.is_some() => {
            format!("the API has not answered for {} s", late.unwrap_or_default().as_secs())
        }
        (Phase::Waiting, _) if facts.kind == Kind::Api => "waiting for the API".to_owned(),
        (Phase::Ready, _) if facts.kind == Kind::Api => "the API is served".to_owned(),
        (_, _) if facts.kind == Kind::Proxy => "the rules of services are kept".to_owned(),
        (Phase::Waiting, Health::Unknown) => "waiting for Docker and the API".to_owned(),
        (Phase::Waiting, Health::Down { reason }) => format!("waiting for Docker: {reason}"),
        (Phase::Waiting, Health::Up { .. }) => "waiting for the API to call the node Ready".to_owned(),
        (Phase::Ready, Health::Down { reason }) => {
            format!("Docker does not answer, {} left alone: {reason}", pods(facts.pods))
        }
        (Phase::Ready, Health::Unknown | Health::Up { .. }) => format!("Ready with {}", pods(facts.pods)),
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

    fn facts(phase: Phase) -> Facts {
        Facts {
            kind: Kind::Node,
            phase,
            age: Duration::from_secs(1),
            docker: Health::Up { version: "20".into() },
            pods: 2,
            api_silent: Some(Duration::ZERO),
            stuck: Vec::new(),
            patience: Duration::from_secs(300),
        }
    }

    fn stuck(name: &'static str, seconds: u64) -> Vec<StuckLoop> {
        vec![StuckLoop { name, instance: String::new(), since_report: Duration::from_secs(seconds) }]
    }

    #[test]
    fn what_is_told_of_what_is_known() {
        let down = Health::Down { reason: "no\nsocket".into() };
        let silent = |seconds| Some(Duration::from_secs(seconds));
        let far = Duration::from_secs(600);
        for (facts, status, alive, starting) in [
            (facts(Phase::Opening), "starting", true, true),
            (
                Facts { age: Duration::from_secs(601), ..facts(Phase::Opening) },
                "hangs: nothing was put together in 601 s",
                false,
                true,
            ),
            // Whatever else is waited for may take as long as it takes.
            (
                Facts { age: Duration::from_secs(90_000), docker: down.clone(), ..facts(Phase::Waiting) },
                "waiting for Docker: no socket",
                true,
                true,
            ),
            (Facts { docker: Health::Unknown, ..facts(Phase::Waiting) }, "waiting for Docker and the API", true, true),
            (facts(Phase::Waiting), "waiting for the API to call the node Ready", true, true),
            (facts(Phase::Ready), "Ready with 2 pods", true, false),
            (Facts { pods: 1, ..facts(Phase::Ready) }, "Ready with 1 pod", true, false),
            // Docker that hangs is no reason to start again: it would not answer then either.
            (
                Facts { docker: down, ..facts(Phase::Ready) },
                "Docker does not answer, 2 pods left alone: no socket",
                true,
                false,
            ),
            (Facts { api_silent: silent(15), ..facts(Phase::Ready) }, "Ready with 2 pods", true, false),
            (Facts { api_silent: silent(16), ..facts(Phase::Ready) }, "the API has not answered for 16 s", true, false),
            (
                Facts { api_silent: silent(61), ..facts(Phase::Ready) },
                "hangs: the API has not answered for 61 s",
                false,
                false,
            ),
            // An API elsewhere is none of ours.
            (Facts { api_silent: None, ..facts(Phase::Ready) }, "Ready with 2 pods", true, false),
            (
                Facts { stuck: stuck("pods", 301), ..facts(Phase::Ready) },
                "hangs: pods has not moved for 301 s",
                false,
                false,
            ),
            (
                Facts { stuck: stuck("pod worker", 9000), ..facts(Phase::Ready) },
                "Ready with 2 pods; stuck: pod worker has not moved for 9000 s",
                true,
                false,
            ),
            (
                Facts { stuck: stuck("node lease", 301), patience: far, ..facts(Phase::Ready) },
                "Ready with 2 pods; stuck: node lease has not moved for 301 s",
                true,
                false,
            ),
            (
                Facts { stuck: stuck("node lease", 601), patience: far, ..facts(Phase::Ready) },
                "hangs: node lease has not moved for 601 s",
                false,
                false,
            ),
            (facts(Phase::Reloading), "reading the settings again", true, false),
            (facts(Phase::Ending), "ending; pods, rules and traffic go on", true, false),
            (Facts { kind: Kind::Api, ..facts(Phase::Waiting) }, "waiting for the API", true, true),
            (Facts { kind: Kind::Api, ..facts(Phase::Ready) }, "the API is served", true, false),
            (Facts { kind: Kind::Proxy, ..facts(Phase::Ready) }, "the rules of services are kept", true, false),
        ] {
            assert_eq!(tell(&facts), Words { status: status.to_owned(), alive, starting }, "{facts:?}");
        }
    }

    #[test]
    fn all_that_is_stuck_is_told_beside_what_hangs() {
        let both = [stuck("pod worker", 400), stuck("pods", 301)].concat();
        let words = tell(&Facts { stuck: both, ..facts(Phase::Ready) });
        assert_eq!(words.status, "hangs: pods has not moved for 301 s; stuck: pod worker has not moved for 400 s");
    }
}
