//! Upstream's own files of what a kubelet and a kube-proxy are configured with, where they lie: `KUBERNETES` names a directory
//! with Kubernetes' sources, as for `facts/extract.py`.

use std::{fs, path::Path};

use serde_json::Value;

use super::kubelet_config::{self, config_file, import};
use crate::config::{Settings, file, kube_proxy, list::entries};

fn read(path: &str) -> String {
    let tree = std::env::var("KUBERNETES").expect("KUBERNETES names a directory with Kubernetes' sources");
    let path = Path::new(&tree).join("pkg").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Upstream's output for an empty file, for its own defaults, and these.
const FILES: [&str; 3] = ["before", "after", "roundtrip/default"];

#[test]
#[ignore = "reads upstream's files in a directory that KUBERNETES names"]
fn upstreams_kubelet_configurations_are_taken_and_differences_named() {
    for file in FILES {
        let text = read(&format!("kubelet/apis/config/scheme/testdata/KubeletConfiguration/{file}/v1beta1.yaml"));
        let found = import(&text, |_| false).unwrap();
        // Of the defaults, where they are written out, these mean something else here.
        let skipped: Vec<&str> = found.skipped.iter().map(|(field, _)| field.as_ref()).collect();
        let differ: &[&str] = match file {
            "before" => &[],
            "after" => &["cgroupDriver", "seccompDefault"],
            _ => &["cgroupDriver", "eventBurst", "eventRecordQPS", "seccompDefault"],
        };
        assert_eq!((skipped.as_slice(), &found.refused), (differ, &Vec::new()), "{file}");
        // Every exported setting is accepted in a file that a node starts with, whether it is the default or not. One
        // of upstream's defaults differs here.
        file::parse(&config_file(&found.settings, "upstream's")).unwrap();
        let defaults = entries(&Settings::example());
        let is_default = |name: &str, value: &Value| {
            defaults.iter().any(|entry| entry.name() == name && kubelet_config::is_same(&entry.value, value))
        };
        let (same, other): (Vec<_>, Vec<_>) =
            found.settings.iter().partition::<Vec<_>, _>(|(name, value)| is_default(name, value));
        let (same, other): (usize, Vec<&str>) = (same.len(), other.iter().map(|(name, _)| *name).collect());
        let expected: (usize, &[&str]) = if file == "before" { (0, &[]) } else { (20, &["failSwapOn"]) };
        assert_eq!((same, other.as_slice()), expected, "{file}");
    }
}

#[test]
#[ignore = "reads upstream's files in a directory that KUBERNETES names"]
fn upstreams_kube_proxy_configurations_are_read() {
    for file in FILES {
        let text = read(&format!("proxy/apis/config/scheme/testdata/KubeProxyConfiguration/{file}/v1alpha1.yaml"));
        let (_, unknown) = kube_proxy::parse(&text).unwrap();
        assert_eq!(unknown, Vec::<String>::new(), "{file}");
    }
}
