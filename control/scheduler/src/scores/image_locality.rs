//! ImageLocality: images that a node has, scaled by how many nodes have them. Pure.

use super::MAX;
use crate::{
    cache::Cluster,
    model::{Constraints, NodeInfo},
};

const MB: i64 = 1024 * 1024;
/// Less is not worth a difference (upstream's `minThreshold`).
const MIN: i64 = 23 * MB;
/// More for each container makes no difference (upstream's `maxContainerThreshold`).
const MAX_OF_CONTAINER: i64 = 1000 * MB;

pub(super) fn score(cluster: &Cluster, constraints: &Constraints, node: &NodeInfo) -> i64 {
    let nodes = cluster.nodes.len();
    let sum = constraints.images.iter().filter(|name| node.images.contains_key(*name)).filter_map(|name| {
        let image = cluster.image(name)?;
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // as upstream's `scaledImageScore`
        let scaled = (image.size as f64 * (image.nodes as f64 / nodes as f64)) as i64;
        Some(scaled)
    });
    let containers = i64::try_from(constraints.images.len()).unwrap_or(1).max(1);
    let max = MAX_OF_CONTAINER * containers;
    MAX * (sum.sum::<i64>().clamp(MIN, max) - MIN) / (max - MIN)
}
