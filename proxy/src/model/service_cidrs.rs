//! The ranges of cluster IPs, of ServiceCIDR objects (pkg/proxy/config, `ServiceCIDRConfig`).

use std::collections::{BTreeMap, BTreeSet};

use super::{Cidr, Family, objects};

/// Ranges by the name of their ServiceCIDR. Two objects may have the same range.
#[derive(Debug, Default, Clone)]
pub(crate) struct ServiceCidrs(BTreeMap<String, Vec<Cidr>>);

impl ServiceCidrs {
    /// Adds or updates an object; returns whether ranges changed.
    pub(crate) fn put(&mut self, object: &objects::ServiceCidr) -> bool {
        let ranges = object.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
        let ranges: Vec<Cidr> = ranges.filter_map(|range| Cidr::parse(range)).collect();
        let changed = self.0.get(&Self::key(object)) != Some(&ranges);
        self.0.insert(Self::key(object), ranges);
        changed
    }

    /// Removes an object; returns whether it existed.
    pub(crate) fn delete(&mut self, object: &objects::ServiceCidr) -> bool {
        self.0.remove(&Self::key(object)).is_some()
    }

    /// After a new list: removes every object that was not in it.
    pub(crate) fn retain(&mut self, listed: &BTreeSet<String>) -> bool {
        let before = self.0.len();
        self.0.retain(|name, _| listed.contains(name));
        self.0.len() != before
    }

    /// The key of an object for [`retain`](Self::retain).
    pub(crate) fn key(object: &objects::ServiceCidr) -> String {
        object.metadata.name.clone().unwrap_or_default()
    }

    /// The ranges of a family, in order, each once.
    pub(crate) fn of(&self, family: Family) -> Vec<Cidr> {
        let ranges: BTreeSet<Cidr> = self.0.values().flatten().filter(|c| c.family() == family).copied().collect();
        ranges.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ranges_of_all_objects_count_until_the_last_of_them_is_gone() {
        let object = |name: &str, cidrs: &[&str]| -> objects::ServiceCidr {
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}})).unwrap()
        };
        let mut known = ServiceCidrs::default();
        assert!(known.put(&object("kubernetes", &["10.96.0.0/16", "fd00:10:96::/112"])));
        assert!(!known.put(&object("kubernetes", &["10.96.0.0/16", "fd00:10:96::/112"])), "nothing new");
        assert!(known.put(&object("more", &["10.97.0.0/24", "10.96.0.0/16"])));
        let ranges =
            |known: &ServiceCidrs, family| known.of(family).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(ranges(&known, Family::V4), ["10.96.0.0/16", "10.97.0.0/24"]);
        assert_eq!(ranges(&known, Family::V6), ["fd00:10:96::/112"]);
        assert!(known.delete(&object("more", &[])) && !known.delete(&object("more", &[])));
        assert_eq!(ranges(&known, Family::V4), ["10.96.0.0/16"]);
        assert!(known.retain(&BTreeSet::new()) && !known.retain(&BTreeSet::new()));
        assert!(ranges(&known, Family::V4).is_empty());
    }
}
