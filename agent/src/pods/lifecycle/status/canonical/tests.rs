//! What a kube-apiserver 1.36 made of statuses of this agent (`recorded.json`), and a model of what it does to others.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::pods::lifecycle::patch::patch_of;

/// How the server's types write a field: `!` always, `*` if it is set at all, else if it is not empty.
/// What is below it is of the type after the colon.
const TYPES: [(&str, &str); 12] = [
    (
        "PodStatus",
        "conditions:Condition containerStatuses:Container initContainerStatuses:Container \
         ephemeralContainerStatuses:Container *startTime *resources:Resources",
    ),
    ("Condition", "!type !status !lastProbeTime !lastTransitionTime"),
    (
        "Container",
        "!name !image !imageID !ready !restartCount !state:State !lastState:State *started *resources:Resources \
         *stopSignal *user:User volumeMounts:Mount allocatedResourcesStatus:Health",
    ),
    ("State", "*running:Running *terminated:Terminated *waiting:Waiting"),
    ("Running", "!startedAt"),
    ("Terminated", "!exitCode !startedAt !finishedAt"),
    ("Waiting", ""),
    ("Resources", ""),
    ("User", "*linux:Linux"),
    ("Linux", "!uid !gid"),
    ("Mount", "!name !mountPath *recursiveReadOnly *volumeStatus"),
    ("Health", "!name"),
];

/// The marks of a type's fields, and the types of what they hold.
fn fields(kind: &str) -> BTreeMap<&'static str, (char, &'static str)> {
    let text = TYPES.iter().find(|(name, _)| *name == kind).map_or("", |(_, text)| text);
    text.split_whitespace()
        .map(|word| {
            let (name, inner) = word.split_once(':').unwrap_or((word, ""));
            match name.chars().next() {
                Some(mark @ ('!' | '*')) => (&name[1..], (mark, inner)),
                _ => (name, (' ', inner)),
            }
        })
        .collect()
}

/// What the server makes of an object of a type: decoded into it, and written again.
fn served(kind: &str, sent: &Map<String, Value>) -> Map<String, Value> {
    let known = fields(kind);
    let mut out = Map::new();
    for (name, value) in sent {
        let (mark, inner) = known.get(name.as_str()).copied().unwrap_or((' ', ""));
        let value = match value {
            Value::Object(fields) if !inner.is_empty() => Value::Object(served(inner, fields)),
            Value::Array(items) if !inner.is_empty() => {
                items.iter().map(|item| Value::Object(served(inner, item.as_object().unwrap()))).collect()
            }
            Value::String(text) if name.ends_with("Time") || name.ends_with("At") => {
                json!(text.split_once('.').map_or(text.clone(), |(whole, _)| format!("{whole}Z")))
            }
            other => other.clone(),
        };
        let empty = match &value {
            Value::Null => true,
            Value::Bool(truth) => !truth,
            Value::Number(number) => number.as_i64() == Some(0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
        };
        if (mark == '*' && !value.is_null()) || !empty {
            out.insert(name.clone(), value);
        }
    }
    for (name, (_, inner)) in known.into_iter().filter(|(_, (mark, _))| *mark == '!') {
        let nothing = match name {
            "startedAt" | "finishedAt" | "lastProbeTime" | "lastTransitionTime" => Value::Null,
            "ready" => json!(false),
            "restartCount" | "exitCode" | "uid" | "gid" => json!(0),
            _ if !inner.is_empty() => json!({}),
            _ => json!(""),
        };
        out.entry(name).or_insert(nothing);
    }
    out
}

/// A status as the server has it after it was sent.
fn kept(sent: &PodStatus) -> PodStatus {
    let sent = serde_json::to_value(sent).unwrap();
    serde_json::from_value(Value::Object(served("PodStatus", sent.as_object().unwrap()))).unwrap()
}

fn recorded() -> BTreeMap<String, Value> {
    serde_json::from_str(include_str!("recorded.json")).unwrap()
}

#[test]
fn the_model_of_the_server_is_the_server() {
    for (name, status) in recorded() {
        assert_eq!(Value::Object(served("PodStatus", status.as_object().unwrap())), status, "{name}");
    }
}

#[test]
fn a_status_that_was_written_is_the_one_that_was_wanted() {
    for (name, status) in recorded() {
        let seen: PodStatus = serde_json::from_value(status).unwrap();
        let wanted = canonical(seen.clone());
        assert_eq!(canonical(kept(&wanted)), wanted, "{name}");
        assert_eq!(canonical(wanted.clone()), wanted, "{name}");
        assert_eq!(patch_of(&Pod::default(), &canonical(seen), &wanted), None, "{name}");
    }
}

#[test]
fn what_says_nothing_is_nothing() {
    for (one, other) in [
        (json!({"message": "", "reason": "", "podIPs": [], "observedGeneration": 0}), json!({})),
        (json!({"startTime": "0001-01-01T00:00:00Z"}), json!({})),
        (json!({"startTime": "2026-01-01T00:00:00.9Z"}), json!({"startTime": "2026-01-01T00:00:00Z"})),
        (json!({"startTime": "1969-12-31T23:59:58.5Z"}), json!({"startTime": "1969-12-31T23:59:58Z"})),
        (json!({"allocatedResources": {"cpu": "0.5"}}), json!({"allocatedResources": {"cpu": "500m"}})),
        (json!({"allocatedResources": {}}), json!({})),
    ] {
        let read = |value: Value| canonical(serde_json::from_value::<PodStatus>(value).unwrap());
        assert_eq!(read(one.clone()), read(other), "{one}");
    }
    let container = |more: Value| {
        let mut container = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0});
        container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        canonical(serde_json::from_value::<PodStatus>(json!({"containerStatuses": [container]})).unwrap())
    };
    assert_eq!(container(json!({"lastState": {}, "state": {}})), container(json!({})));
    // Behind pointers an empty value says something.
    for more in
        [json!({"started": false}), json!({"resources": {}}), json!({"state": {"waiting": {}}}), json!({"user": {}})]
    {
        assert_ne!(container(more.clone()), container(json!({})), "{more}");
    }
}

/// Answers yes or no, as the test's bytes say.
struct Dice<'a>(&'a [u8], usize);

impl Dice<'_> {
    fn roll(&mut self) -> u8 {
        self.1 += 1;
        self.0.get(self.1 % self.0.len().max(1)).copied().unwrap_or(0)
    }

    fn some<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (!self.roll().is_multiple_of(3)).then(|| value(self))
    }

    fn text(&mut self) -> String {
        ["", "a", "Error"][usize::from(self.roll()) % 3].to_owned()
    }

    fn time(&mut self) -> Time {
        let whole = i64::from(self.roll()) - 3;
        Time(Timestamp::new(whole, i32::from(self.roll()) * 1_000_000 * if whole < 0 { -1 } else { 1 }).unwrap())
    }

    fn amounts(&mut self) -> BTreeMap<String, ApiQuantity> {
        let amount = ["0", "0.5", "500m", "1024Ki", "1Gi"][usize::from(self.roll()) % 5];
        self.some(|_| ("cpu".to_owned(), ApiQuantity(amount.to_owned()))).into_iter().collect()
    }

    fn resources(&mut self) -> ResourceRequirements {
        ResourceRequirements {
            limits: self.some(Self::amounts),
            requests: self.some(Self::amounts),
            claims: self.some(|_| Vec::new()),
        }
    }

    fn state(&mut self) -> ContainerState {
        ContainerState {
            running: self.some(|d| ContainerStateRunning { started_at: d.some(Self::time) }),
            terminated: self.some(|d| ContainerStateTerminated {
                container_id: d.some(Self::text),
                exit_code: i32::from(d.roll()),
                finished_at: d.some(Self::time),
                message: d.some(Self::text),
                reason: d.some(Self::text),
                signal: d.some(|d| i32::from(d.roll() % 2)),
                started_at: d.some(Self::time),
            }),
            waiting: self.some(|d| ContainerStateWaiting { message: d.some(Self::text), reason: d.some(Self::text) }),
        }
    }

    fn container(&mut self) -> ContainerStatus {
        ContainerStatus {
            name: "c".to_owned(),
            image: self.text(),
            image_id: self.text(),
            ready: self.roll().is_multiple_of(2),
            restart_count: i32::from(self.roll() % 2),
            allocated_resources: self.some(Self::amounts),
            container_id: self.some(Self::text),
            last_state: self.some(Self::state),
            state: self.some(Self::state),
            resources: self.some(Self::resources),
            started: self.some(|d| d.roll().is_multiple_of(2)),
            user: self.some(|d| ContainerUser {
                linux: d.some(|d| LinuxContainerUser {
                    gid: i64::from(d.roll() % 2),
                    uid: 0,
                    supplemental_groups: d.some(|d| d.some(|_| 5).into_iter().collect()),
                }),
            }),
            volume_mounts: self.some(|d| {
                let mount = VolumeMountStatus {
                    mount_path: "/m".to_owned(),
                    name: "m".to_owned(),
                    read_only: d.some(|d| d.roll().is_multiple_of(2)),
                    recursive_read_only: d.some(Self::text),
                    ..VolumeMountStatus::default()
                };
                d.some(|_| mount).into_iter().collect()
            }),
            ..ContainerStatus::default()
        }
    }

    fn status(&mut self) -> PodStatus {
        PodStatus {
            conditions: self.some(|d| {
                let condition = |d: &mut Self| PodCondition {
                    type_: "Ready".to_owned(),
                    status: d.text(),
                    last_probe_time: d.some(Self::time),
                    last_transition_time: d.some(Self::time),
                    message: d.some(Self::text),
                    observed_generation: d.some(|d| i64::from(d.roll() % 2)),
                    reason: d.some(Self::text),
                };
                d.some(condition).into_iter().collect()
            }),
            container_statuses: self.some(|d| d.some(Self::container).into_iter().collect()),
            init_container_statuses: self.some(|d| d.some(Self::container).into_iter().collect()),
            ephemeral_container_statuses: self.some(|d| d.some(Self::container).into_iter().collect()),
            message: self.some(Self::text),
            observed_generation: self.some(|d| i64::from(d.roll() % 2)),
            phase: self.some(Self::text),
            pod_ip: self.some(Self::text),
            reason: self.some(Self::text),
            resources: self.some(Self::resources),
            start_time: self.some(Self::time),
            allocated_resources: self.some(Self::amounts),
            ..PodStatus::default()
        }
    }
}

proptest! {
    /// Whatever is wanted: what the server keeps of it is it, so that it is not written a second time.
    #[test]
    fn what_the_server_keeps_is_what_was_wanted(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
        let any = Dice(&bytes, 0).status();
        let wanted = canonical(any.clone());
        prop_assert_eq!(canonical(kept(&any)), wanted.clone());
        prop_assert_eq!(patch_of(&Pod::default(), &canonical(kept(&wanted)), &wanted), None);
    }
}
