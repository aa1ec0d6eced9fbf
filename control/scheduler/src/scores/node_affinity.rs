//! NodeAffinity: the weights of preferred terms that match. Pure.

use windlass_kit::objects::node_selector;

use super::normalise;
use crate::model::{Constraints, NodeInfo};

pub(super) fn scores(constraints: &Constraints, nodes: &[&NodeInfo]) -> Vec<i64> {
    let sum = |node: &&NodeInfo| -> i64 {
        let terms = constraints.preferred.iter();
        let matching = terms.filter(|p| node_selector::term_matches(&p.preference, &node.name, &node.labels));
        matching.map(|p| i64::from(p.weight)).sum()
    };
    normalise(&nodes.iter().map(sum).collect::<Vec<_>>(), false)
}
