//! How long failed pods are left before they are deleted: longer each time, by node. Pure.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use windlass_kit::backoff::delay_after;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// The failed pods of one set that were deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FailedPods {
    /// By node: how many in a row, and when the last one was deleted.
    by_node: HashMap<String, (u32, Timestamp)>,
}

impl FailedPods {
    /// How long a failed pod of the node has to be left.
    pub(super) fn wait(&self, node: &str, now: Timestamp) -> Option<Duration> {
        let (failures, last) = self.by_node.get(node)?;
        let delay = delay_after(FIRST, LONGEST, failures.saturating_sub(1));
        let since = Duration::try_from(now.duration_since(*last)).unwrap_or_default();
        delay.checked_sub(since).filter(|wait| !wait.is_zero())
    }

    /// A failed pod of the node is deleted. Long after the last one, it counts as the first.
    pub(super) fn deleted(&mut self, node: &str, now: Timestamp) {
        self.by_node
            .retain(|_, (_, last)| Duration::try_from(now.duration_since(*last)).unwrap_or_default() <= LONGEST * 2);
        let (failures, last) = self.by_node.entry(node.to_owned()).or_insert((0, now));
        (*failures, *last) = (failures.saturating_add(1), now);
    }
}
