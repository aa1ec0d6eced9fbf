//! Changes of pods: of themselves, of their resources, statuses and ephemeral containers.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::{
    pod_specs::pod_of,
    refusals::{changed, compare},
    table,
};
use crate::apiserver::tests::{PODS, with_namespace};

/// The subresource, the spec of a pod but for its container, the rest of its metadata, what its status has, what is changed
/// by pointers (`-` for nothing), and the errors of fields. Recorded from kube-apiserver 1.36; which fields of a spec differ
/// is told in other words here, and left out.
static CHANGES: LazyLock<String> = LazyLock::new(|| table("pod_changes"));

fn fields(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn pods_change_as_upstream_allows() {
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in CHANGES.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [subresource, rest, metadata, status, changes, refused] = columns[..] else { panic!("{line}") };
        let api = with_namespace().await;
        let mut pod = pod_of(rest);
        pod["metadata"].as_object_mut().unwrap().extend(fields(metadata));
        let answer = changed(&api, [PODS, "x", subresource], pod, &fields(status), fields(changes)).await;
        wrong.extend(compare(&format!("{subresource} {rest} {status} {changes}"), &answer, refused));
        rows += 1;
    }
    assert!(rows > 170, "{rows}");
    assert!(wrong.is_empty(), "{} of {rows} differ:\n{}", wrong.len(), wrong.join("\n"));
}
