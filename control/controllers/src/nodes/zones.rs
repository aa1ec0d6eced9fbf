//! How much of each zone is not ready, kept up to date node by node, and what follows for evictions. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::metrics::ZoneSize;
use crate::runtime::CachedNode;

/// How much of a zone is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZoneState {
    Normal,
    /// At least 55 % and more than 2 nodes; holds how many nodes there are.
    Partial(usize),
    Full,
}

/// Region and zone of a node, the unit of disruption; empty without either. Upstream's `GetZoneKey`.
pub(crate) fn zone(node: &CachedNode) -> String {
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|l| l.get(key)).map_or("", String::as_str);
    match (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone")) {
        ("", "") => String::new(),
        (region, zone) => format!("{region}:{zone}"),
    }
}

/// Whether a node says nothing about its zone, be it ready or not.
pub(crate) fn is_excluded(node: &CachedNode) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key("node.kubernetes.io/exclude-disruption"))
}

/// The state of a zone with these numbers of ready and unready nodes.
pub(crate) fn state(ready: usize, unready: usize) -> ZoneState {
    match (ready, unready) {
        (0, 1..) => ZoneState::Full,
        _ if unready > 2 && unready * 100 >= (ready + unready) * 55 => ZoneState::Partial(ready + unready),
        _ => ZoneState::Normal,
    }
}

/// Seconds between evictions of two nodes of a zone; `None` when none may be evicted.
pub(crate) fn eviction_interval(state: ZoneState) -> Option<u64> {
    match state {
        ZoneState::Normal | ZoneState::Full => Some(10),
        ZoneState::Partial(nodes) if nodes > 50 => Some(100),
        ZoneState::Partial(_) => None,
    }
}

/// The nodes of one zone.
#[derive(Debug, Default)]
struct Zone {
    ready: usize,
    unready: BTreeSet<String>,
}

impl Zone {
    fn state(&self) -> ZoneState {
        state(self.ready, self.unready.len())
    }
}

/// The readiness of all nodes by zone.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    /// Zone and readiness of each node.
    nodes: HashMap<String, (String, bool)>,
    zones: BTreeMap<String, Zone>,
    /// The number of zones without a ready node.
    down: usize,
}

/// What a change of one node means for others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Nodes that are not ready and whose eviction must be considered again.
    pub(crate) reconsider: Vec<String>,
    /// All zones were down and no longer are.
    pub(crate) recovered: bool,
}

impl Zones {
    /// The zone and readiness of a node became these; `None` when it is deleted.
    pub(crate) fn set(&mut self, name: &str, node: Option<(String, bool)>) -> Effect {
        let old = match &node {
            Some(node) => self.nodes.insert(name.to_owned(), node.clone()),
            None => self.nodes.remove(name),
        };
        if old == node {
            return Effect::default();
        }
        let all_were_down = self.all_down();
        let mut reconsider = BTreeSet::new();
        if let Some((zone, ready)) = old {
            self.change(zone, &mut reconsider, |zone| {
                zone.ready -= usize::from(ready);
                zone.unready.remove(name);
            });
        }
        if let Some((zone, ready)) = node {
            self.change(zone, &mut reconsider, |zone| {
                zone.ready += usize::from(ready);
                zone.unready.extend((!ready).then(|| name.to_owned()));
            });
        }
        if self.all_down() != all_were_down {
            reconsider.extend(self.zones.values().flat_map(|zone| zone.unready.iter().cloned()));
        }
        Effect { reconsider: reconsider.into_iter().collect(), recovered: all_were_down && !self.all_down() }
    }

    /// Changes one zone; its unready nodes are considered again when that changes the rate of evictions.
    fn change(&mut self, name: String, reconsider: &mut BTreeSet<String>, change: impl FnOnce(&mut Zone)) {
        let zone = self.zones.entry(name.clone()).or_default();
        let before = zone.state();
        change(zone);
        let after = zone.state();
        self.down += usize::from(after == ZoneState::Full);
        self.down -= usize::from(before == ZoneState::Full);
        if eviction_interval(before) != eviction_interval(after) {
            reconsider.extend(zone.unready.iter().cloned());
        }
        if zone.ready == 0 && zone.unready.is_empty() {
            self.zones.remove(&name);
        }
    }

    /// How many nodes each zone has.
    pub(super) fn sizes(&self) -> BTreeMap<String, ZoneSize> {
        let size = |zone: &Zone| ZoneSize { ready: zone.ready, unready: zone.unready.len() };
        self.zones.iter().map(|(name, zone)| (name.clone(), size(zone))).collect()
    }

    /// Whether there are nodes and no zone has a ready one: the fault is likely on this side.
    pub(crate) fn all_down(&self) -> bool {
        !self.zones.is_empty() && self.down == self.zones.len()
    }

    /// The state of a node's zone, and whether all zones are down, when that node is not ready, whatever is known of it.
    pub(crate) fn without(&self, name: &str) -> (ZoneState, bool) {
        let Some((zone, ready)) = self.nodes.get(name) else { return (ZoneState::Normal, false) };
        let Some(zone) = self.zones.get(zone) else { return (ZoneState::Normal, false) };
        if !ready {
            return (zone.state(), self.all_down());
        }
        let state = state(zone.ready - 1, zone.unready.len() + 1);
        (state, state == ZoneState::Full && self.down + 1 == self.zones.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zone_state_depends_on_the_share_of_unready_nodes() {
        assert_eq!(state(1, 0), ZoneState::Normal);
        assert_eq!(state(0, 1), ZoneState::Full);
        assert_eq!(state(1, 2), ZoneState::Normal);
        assert_eq!(state(2, 3), ZoneState::Partial(5));
        assert_eq!(eviction_interval(state(2, 3)), None);
        assert_eq!(eviction_interval(state(40, 60)), Some(100));
    }

    #[test]
    fn a_node_may_be_left_out() {
        let mut node = CachedNode::default();
        assert!(!is_excluded(&node));
        let label = ("node.kubernetes.io/exclude-disruption".to_owned(), String::new());
        node.metadata.labels = Some([label].into());
        assert!(is_excluded(&node), "whatever the value");
    }

    #[test]
    fn a_change_reaches_the_unready_nodes_whose_evictions_it_concerns() {
        let mut zones = Zones::default();
        let at = |zone: &str, ready| Some((zone.to_owned(), ready));
        let names = |effect: Effect| effect.reconsider;
        assert!(zones.set("a1", at("a", true)).reconsider.is_empty());
        for i in 0..100 {
            assert!(zones.set(&format!("b{i}"), at("b", true)).reconsider.is_empty());
        }
        // Of 100 nodes some become unready: the others hear nothing until evictions slow down.
        let effects: Vec<usize> =
            (0..60).map(|i| zones.set(&format!("b{i}"), at("b", false)).reconsider.len()).collect();
        assert_eq!(effects.iter().filter(|n| **n > 0).collect::<Vec<_>>(), [&55]);
        assert_eq!(zones.without("a1"), (ZoneState::Full, false));
        assert_eq!(zones.set("a1", at("a", false)), Effect::default());
        // Nothing is ready any more, and then one node is.
        (60..99).for_each(|i| drop(zones.set(&format!("b{i}"), at("b", false))));
        assert_eq!(zones.without("b99"), (ZoneState::Full, true));
        assert!(!zones.all_down());
        assert_eq!(zones.set("b99", at("b", false)).reconsider.len(), 101);
        assert!(zones.all_down());
        let effect = zones.set("a1", at("a", true));
        assert!(effect.recovered && effect.reconsider.len() == 100);
        // A node that moves or is removed leaves its zone.
        zones.set("a1", at("c", true));
        assert_eq!(names(zones.set("a1", None)).len(), 100, "all are down again");
    }

    proptest! {
        /// Counts kept change by change are those of a count from the beginning.
        #[test]
        fn counts_follow_changes(changes in prop::collection::vec((0u8..6, 0u8..3, any::<Option<bool>>()), 0..60)) {
            let (mut zones, mut nodes) = (Zones::default(), BTreeMap::new());
            for (node, zone, ready) in changes {
                let wanted = ready.map(|ready| (format!("z{zone}"), ready));
                zones.set(&format!("n{node}"), wanted.clone());
                match wanted {
                    Some(wanted) => drop(nodes.insert(node, wanted)),
                    None => drop(nodes.remove(&node)),
                }
                let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
                for (zone, ready) in nodes.values() {
                    let (up, down) = counts.entry(zone.clone()).or_default();
                    *(if *ready { up } else { down }) += 1;
                }
                let kept: BTreeMap<String, (usize, usize)> =
                    zones.zones.iter().map(|(name, zone)| (name.clone(), (zone.ready, zone.unready.len()))).collect();
                prop_assert_eq!(&kept, &counts);
                prop_assert_eq!(zones.all_down(), !counts.is_empty() && counts.values().all(|(up, _)| *up == 0));
            }
        }
    }
}
