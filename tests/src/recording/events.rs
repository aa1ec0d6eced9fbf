//! Events as lines.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{normalize::Names, table::fold, text_of};

/// The source of a node's events, which a recording is not about.
const NODE: &str = "kubelet";

/// The events of objects of these kinds: by object, in the order in which each first happened; for a pod, and for pods
/// that share a generated name, each is listed once: how often it repeats depends on timing.
#[must_use]
pub fn lines_of_events(events: &[Value], kinds: &[&str], names: &Names) -> String {
    let mut groups: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
    for event in events {
        let object = &event["involvedObject"];
        let source = [&event["source"]["component"], &event["reportingComponent"]];
        let source = source.into_iter().map(text_of).find(|s| !s.is_empty()).unwrap_or_default();
        if !kinds.contains(&text_of(&object["kind"])) || source == NODE {
            continue;
        }
        let name = names.normalize(&format!("{}/{}", text_of(&object["kind"]), text_of(&object["name"])));
        let line = format!(
            "  {} {} {source}: {}",
            text_of(&event["type"]),
            text_of(&event["reason"]),
            names.normalize(text_of(&event["message"]))
        );
        // `NAME.NANOSECONDS` in hexadecimal.
        let first =
            text_of(&event["metadata"]["name"]).rsplit('.').next().and_then(|n| u64::from_str_radix(n, 16).ok());
        groups.entry(name).or_default().push((first.unwrap_or(0), line));
    }
    let mut text = String::new();
    for (object, mut lines) in groups {
        lines.sort();
        let of_pods = object.starts_with("Pod/");
        let mut lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
        if of_pods {
            lines.sort();
            lines.dedup();
        }
        // Pods that are made or removed together have no order.
        lines.chunk_by_mut(|a, b| is_of_generated_pod(a) && reason_of(a) == reason_of(b)).for_each(<[String]>::sort);
        text += &format!("{object}\n{}", fold(&lines));
    }
    text
}

fn is_of_generated_pod(line: &str) -> bool {
    line.contains("{pod}")
}

fn reason_of(line: &str) -> Option<&str> {
    line.split_whitespace().nth(1)
}
