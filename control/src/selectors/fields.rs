//! Field selectors: `metadata.name=x,spec.nodeName!=y`, on the selectable fields of each kind.

use serde_json::Value;

use super::SelectorError;
use crate::registry::Gvk;

/// A parsed field selector; the empty one matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    /// Path, wanted value, whether it must be equal.
    requirements: Vec<(String, String, bool)>,
}

/// Selectable fields beside name and namespace; upstream's lists.
fn supported(kind: &str) -> &'static [&'static str] {
    match kind {
        "Pod" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        "Event" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        "Node" => &["spec.unschedulable"],
        "Namespace" => &["status.phase"],
        "Secret" => &["type"],
        "Service" => &["spec.clusterIP", "spec.type"],
        "ReplicationController" => &["status.replicas"],
        _ => &[],
    }
}

impl FieldSelector {
    /// Parses the query parameter.
    ///
    /// # Errors
    /// For fields that are not selectable, and for malformed text.
    pub fn parse(text: &str, gvk: &Gvk) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (path, value, true)
            } else {
                return Err(SelectorError(format!("invalid selector: {text:?}; can't understand {part:?}")));
            };
            let known = matches!(path, "metadata.name" | "metadata.namespace") || supported(gvk.kind).contains(&path);
            if !known {
                return Err(SelectorError(format!("field label not supported: {path}")));
            }
            requirements.push((path.to_owned(), value.to_owned(), equal));
        }
        Ok(Self { requirements })
    }

    /// The value that the selector requires of `field`, if any: `metadata.name=x` makes a list a single read.
    #[must_use]
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements.iter().find(|(path, _, equal)| *equal && path == field).map(|(_, value, _)| value.as_str())
    }

    /// Whether the selector matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object matches.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.requirements.iter().all(|(path, wanted, equal)| (value_at(object, path) == *wanted) == *equal)
    }
}

fn value_at(object: &Value, path: &str) -> String {
    // An event's source is selected by its component; newer events have it in another field.
    let path = match path {
        "source" if object["source"]["component"].as_str().is_some_and(|c| !c.is_empty()) => "source.component",
        "source" => "reportingComponent",
        path => path,
    };
    // The first of several, as upstream compares lists of addresses.
    if path == "status.podIPs" {
        return object["status"]["podIPs"][0]["ip"].as_str().unwrap_or_default().to_owned();
    }
    let found = path.split('.').fold(object, |value, key| &value[key]);
    match found {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => found.to_string(),
        Value::Null if path == "spec.unschedulable" || path == "spec.hostNetwork" => "false".to_owned(),
        Value::Null if path == "status.replicas" => "0".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Gvk = Gvk { group: "", version: "v1", kind: "Pod" };

    #[test]
    fn fields() {
        let pod =
            serde_json::json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
        for (selector, matches) in [
            ("", true),
            ("metadata.name=a", true),
            ("metadata.name!=a", false),
            ("spec.nodeName=n,status.phase!=Failed", true),
            ("spec.nodeName=", false),
            ("spec.hostNetwork=false", true),
        ] {
            assert_eq!(FieldSelector::parse(selector, &POD).unwrap().matches(&pod), matches, "{selector}");
        }
        let error = FieldSelector::parse("spec.color=red", &POD).unwrap_err().to_string();
        assert_eq!(error, "field label not supported: spec.color");
        assert!(FieldSelector::parse("nonsense", &POD).is_err());
        let fields = FieldSelector::parse("metadata.name=a,spec.nodeName!=n", &POD).unwrap();
        assert_eq!((fields.exact("metadata.name"), fields.exact("spec.nodeName")), (Some("a"), None));
    }
}
