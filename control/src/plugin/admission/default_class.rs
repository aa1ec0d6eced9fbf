//! The class that is marked as the default: of ingresses and of volume claims.

use serde_json::Value;

use crate::store::{ResourceId, Store};

/// The name of the class with the annotation `mark: "true"`: of several the newest, and the first by name of those that are
/// as old.
pub(super) fn default_class(store: &Store, classes: ResourceId, marks: &[&str]) -> Option<Value> {
    let (classes, _) = store.list(classes, None);
    newest(classes.iter().map(|class| class.value()), marks)
}

/// Pure.
fn newest(classes: impl Iterator<Item = Value>, marks: &[&str]) -> Option<Value> {
    let is_marked = |class: &Value| marks.iter().any(|mark| class["metadata"]["annotations"][*mark] == "true");
    let created = |class: &Value| class["metadata"]["creationTimestamp"].as_str().unwrap_or("").to_owned();
    // Of several maxima the last counts, and classes come in the order of their names.
    let mut all: Vec<Value> = classes.filter(is_marked).collect();
    all.reverse();
    all.into_iter().max_by_key(created).map(|class| class["metadata"]["name"].clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_default_counts() {
        let class = |name: &str, created: &str, mark: &str| json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": {"d": mark}}});
        let all = [class("a", "1", "true"), class("b", "2", "true"), class("c", "2", "true"), class("d", "3", "false")];
        assert_eq!(newest(all.clone().into_iter(), &["d"]), Some(json!("b")));
        assert_eq!(newest(all.into_iter(), &["other"]), None);
    }
}
