//! Which pods count, by what they are doing: upstream's `TestGroupPods`.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::{before, condition, now, pod};
use crate::horizontal_pod_autoscaler::replica_calculator::{PodMetric, groups::group_pods};

#[test]
fn pods_count_by_what_they_do() {
    let none = json!({"status": {"conditions": [], "startTime": null}});
    for (name, change, age, is_cpu, expected) in [
        ("ready", json!({}), 0, true, "ready"),
        ("of memory, whatever its state", condition("False", 10, 10), 0, false, "ready"),
        ("without condition", none.clone(), 0, true, "unready"),
        ("without condition, of memory", none, 0, false, "ready"),
        ("starting, with a fresh sample", condition("True", 30, 60), 0, true, "ready"),
        ("starting, with a sample of before it was ready", condition("True", 30, 60), 1, true, "unready"),
        ("starting and unready", condition("False", 60, 60), 0, true, "unready"),
        ("starting and unknown", condition("Unknown", 60, 60), 0, true, "ready"),
        ("started, with an old sample", condition("True", 10, 301), 60, true, "ready"),
        ("started, and was ready once", condition("False", 270, 301), 0, true, "ready"),
        ("started, and has never been ready", condition("False", 272, 301), 0, true, "unready"),
        ("pending", json!({"status": {"phase": "Pending"}}), 0, false, "unready"),
        ("failed", json!({"status": {"phase": "Failed"}}), 0, true, "ignored"),
        ("going", json!({"metadata": {"deletionTimestamp": before(1).to_string()}}), 0, true, "ignored"),
    ] {
        let pods = [pod("p", &change)];
        let sample = PodMetric { at: before(age), window: Duration::from_secs(30), value: 1 };
        let groups = group_pods(&pods, &BTreeMap::from([("p".to_owned(), sample)]), is_cpu, now());
        let found = match groups.ready {
            1 => "ready",
            _ if groups.unready.contains("p") => "unready",
            _ if groups.ignored.contains("p") => "ignored",
            _ => "missing",
        };
        assert_eq!(found, expected, "{name}");
    }
    let pods = [pod("p", &json!({})), pod("q", &json!({"status": {"phase": "Pending"}}))];
    let groups = group_pods(&pods, &BTreeMap::new(), true, now());
    assert_eq!((groups.ready, groups.missing.len(), groups.unready.len()), (0, 1, 1), "no samples");
}
