//! NodeAffinity: node selectors and required node affinity. Pure.

use std::collections::BTreeSet;

use windlass_kit::objects::node_selector;

use super::Failure;
use crate::model::{Constraints, NodeInfo};

pub(crate) const NAME: &str = "NodeAffinity";
/// Upstream's `ErrReasonPod`.
const REASON: &str = "node(s) didn't match Pod's node affinity/selector";
/// Upstream's `errReasonConflict`.
const CONFLICT: &str = "pod affinity terms conflict";

/// The nodes that the affinity names, if each of its terms names some: pods of DaemonSets look at one node only.
///
/// # Errors
/// Upstream's message when the names exclude each other.
pub(crate) fn pre_filter(constraints: &Constraints) -> Result<Option<BTreeSet<String>>, String> {
    let Some(required) = &constraints.required else { return Ok(None) };
    let mut names = BTreeSet::new();
    for term in &required.node_selector_terms {
        let fields = term.match_fields.iter().flatten();
        let mut of_term: Option<BTreeSet<String>> = None;
        for field in fields.filter(|field| field.key == "metadata.name" && field.operator == "In") {
            let values: BTreeSet<String> = field.values.iter().flatten().cloned().collect();
            of_term = Some(of_term.map_or(values.clone(), |known| &known & &values));
        }
        match of_term {
            Some(of_term) => names.extend(of_term),
            None => return Ok(None),
        }
    }
    match (required.node_selector_terms.is_empty(), names.is_empty()) {
        (true, _) => Ok(None),
        (false, true) => Err(CONFLICT.to_owned()),
        (false, false) => Ok(Some(names)),
    }
}

/// Whether a node has what selector and affinity require (upstream's `RequiredNodeAffinity.Match`).
pub(crate) fn matches(constraints: &Constraints, node: &NodeInfo) -> bool {
    constraints.selector.iter().all(|(k, v)| node.labels.get(k) == Some(v))
        && constraints
            .required
            .as_ref()
            .is_none_or(|required| node_selector::matches(required, &node.name, &node.labels))
}

pub(super) fn filter(constraints: &Constraints, node: &NodeInfo) -> Result<(), Failure> {
    if matches(constraints, node) { Ok(()) } else { Err(Failure::unresolvable(NAME, REASON)) }
}
