//! The feature gates of a KubeletConfiguration: what kubelet 1.36 knows, and the fixed behaviour here. None can be set:
//! a gate that agrees with what the node does is accepted, all others are reported.

use serde_json::{Map, Value};

/// Gate, stage, default, whether it is locked to that, what holds here, and where or why.
const TABLE: &str = include_str!("feature_gates.tsv");

/// One gate of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gate {
    pub(super) name: &'static str,
    pub(super) default: bool,
    pub(super) locked: bool,
    /// What a node of ours does; `None` where nothing of a node depends on the gate.
    pub(super) here: Option<bool>,
    /// The file that does it, or why nothing does.
    pub(super) note: &'static str,
}

/// All gates.
pub(super) fn gates() -> impl Iterator<Item = Gate> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut cells = line.split('\t');
        let (name, _, default, locked) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
        let here = match cells.next()? {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        };
        Some(Gate { name, default: default == "on", locked: locked == "locked", here, note: cells.next()? })
    })
}

/// The default of a gate in Kubernetes 1.36; `None` if there is none of this name.
pub(crate) fn default_of(name: &str) -> Option<bool> {
    gates().find(|gate| gate.name == name).map(|gate| gate.default)
}

/// The gates of a configuration that are not accepted, each with the reason.
pub(super) fn not_taken(given: &Map<String, Value>) -> Vec<(String, String)> {
    let word = |on: bool| if on { "on" } else { "off" };
    let told = given.iter().filter_map(|(name, value)| {
        let Some(wanted) = value.as_bool() else { return Some((name, "it is neither true nor false".to_owned())) };
        if matches!(name.as_str(), "AllAlpha" | "AllBeta") {
            return wanted.then(|| (name, "groups of gates cannot be set here".to_owned()));
        }
        let Some(gate) = gates().find(|gate| gate.name == name) else {
            return Some((name, "Kubernetes 1.36 has no such gate".to_owned()));
        };
        if gate.locked && wanted != gate.default {
            return Some((name, format!("it is locked {} in Kubernetes 1.36", word(gate.default))));
        }
        let here = gate.here.filter(|here| *here != wanted)?;
        // A source file is no explanation for users.
        let why = if here || gate.note.ends_with(".md") { String::new() } else { format!(": {}", gate.note) };
        Some((name, format!("it is always {} here{why}", word(here))))
    });
    told.map(|(name, why)| (format!("featureGates.{name}"), why)).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use serde_json::json;

    use super::*;

    #[test]
    fn every_gate_of_the_node_is_accounted_for() {
        let mut names = BTreeSet::new();
        for gate in gates() {
            assert!(names.insert(gate.name), "{} is there twice", gate.name);
            match gate.here {
                // An enabled gate must name the file that implements it.
                Some(true) => {
                    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(gate.note);
                    assert!(file.is_file(), "{}: there is no {}", gate.name, gate.note);
                }
                // And who says that one is off, why.
                Some(false) => assert!(gate.note.len() > 4, "{} is off for no reason", gate.name),
                None => assert_eq!(gate.note, "-", "{}", gate.name),
            }
        }
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(names.len(), lines, "a line of the table cannot be read");
    }

    #[test]
    fn gates_that_agree_are_taken_and_others_told() {
        for (given, told) in [
            (json!({"InPlacePodVerticalScaling": true, "MemoryQoS": false, "JobManagedBy": true}), None),
            (json!({"AllAlpha": false}), None),
            (json!({"MemoryQoS": true}), Some("it is always off here: memory.min and memory.high are not set")),
            (json!({"GracefulNodeShutdown": false}), Some("it is always on here")),
            (json!({"SidecarContainers": false}), Some("it is locked on in Kubernetes 1.36")),
            (json!({"DynamicResourceAllocation": true}), Some("it is always off here")),
            (json!({"AllBeta": true}), Some("groups of gates cannot be set here")),
            (json!({"A": true}), Some("Kubernetes 1.36 has no such gate")),
            (json!({"MemoryQoS": "yes"}), Some("it is neither true nor false")),
        ] {
            let found = not_taken(given.as_object().unwrap());
            let name = given.as_object().unwrap().keys().next().unwrap();
            let wanted: Vec<_> = told.map(|why| (format!("featureGates.{name}"), why.to_owned())).into_iter().collect();
            assert_eq!(found, wanted, "{given}");
        }
    }
}
