//! The plugins of upstream's default profile (1.36, `getDefaultPlugins` with the gates that are on): each is somewhere
//! here, or a line of docs/decisions.md says that it is not.

use std::{fs, path::Path};

/// Plugin, file below this crate, and what stands there.
const PLUGINS: [(&str, &str, &str); 20] = [
    ("SchedulingGates", "src/state/changes.rs", "pod.gated"),
    ("PrioritySort", "src/queue.rs", "Reverse(priority)"),
    ("NodeUnschedulable", "src/filters/node_unschedulable.rs", "NodeUnschedulable"),
    // A pod that names its node is bound.
    ("NodeName", "src/model/pod.rs", "spec.node_name"),
    ("TaintToleration", "src/filters/taint_toleration.rs", "TaintToleration"),
    ("NodeAffinity", "src/filters/node_affinity.rs", "NodeAffinity"),
    ("NodePorts", "src/filters/node_ports.rs", "NodePorts"),
    ("NodeResourcesFit", "src/filters/node_resources_fit.rs", "NodeResourcesFit"),
    ("VolumeRestrictions", "src/filters/volume_restrictions.rs", "VolumeRestrictions"),
    ("NodeVolumeLimits", "../../docs/decisions.md", "limits of volumes by CSI drivers"),
    ("VolumeBinding", "src/filters/volume_binding.rs", "VolumeBinding"),
    ("VolumeZone", "src/filters/volume_zone.rs", "VolumeZone"),
    ("PodTopologySpread", "src/filters/pod_topology_spread.rs", "PodTopologySpread"),
    ("InterPodAffinity", "src/filters/inter_pod_affinity.rs", "InterPodAffinity"),
    ("DynamicResources", "src/filters/dynamic_resources.rs", "cannot allocate all claims"),
    ("DefaultPreemption", "src/preemption.rs", "upstream's"),
    (
        "NodeResourcesBalancedAllocation",
        "src/scores/node_resources_balanced_allocation.rs",
        "NodeResourcesBalancedAllocation",
    ),
    ("ImageLocality", "src/scores/image_locality.rs", "ImageLocality"),
    ("DefaultBinder", "src/writer.rs", "\"binding\""),
    ("NodeDeclaredFeatures", "src/filters/node_declared_features.rs", "NodeDeclaredFeatures"),
];

#[test]
fn every_plugin_of_upstreams_default_profile_is_accounted_for() {
    for (plugin, file, text) in PLUGINS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let found = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{plugin}: {}: {error}", path.display()));
        assert!(found.contains(text), "{plugin}: {text:?} is not in {}", path.display());
    }
}
