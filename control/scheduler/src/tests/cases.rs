//! The recorded cases. The test target `recordings` of the API server's crate reads and writes them with this file, too.

use serde_json::Value;

/// A case with what kube-scheduler decided.
#[derive(Debug, Clone)]
pub(crate) struct Case<'a> {
    pub(crate) name: &'a str,
    /// What is there, in JSON.
    objects: &'a str,
    /// The pod, in JSON.
    pod: &'a str,
    pub(crate) decision: Decision,
}

/// What became of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Why it was not scheduled.
    pub(crate) message: String,
    /// Where it was.
    pub(crate) node: String,
    /// Where it will be, once others have made room.
    pub(crate) nominated: String,
    /// The names of those, in order.
    pub(crate) victims: Vec<String>,
}

impl<'a> Case<'a> {
    /// A line of the file; none for those at its beginning that say what it is.
    pub(crate) fn read(line: &'a str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, objects, pod, message, node, nominated, victims] = columns[..] else {
            panic!("seven columns: {line}")
        };
        let victims = victims.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let (message, node, nominated) = (message.to_owned(), node.to_owned(), nominated.to_owned());
        Some(Self { name, objects, pod, decision: Decision { message, node, nominated, victims } })
    }

    /// As it is written.
    pub(crate) fn line(&self) -> String {
        let Decision { message, node, nominated, victims } = &self.decision;
        [self.name, self.objects, self.pod, message, node, nominated, &victims.join(",")].join("\t")
    }

    pub(crate) fn objects(&self) -> Vec<Value> {
        serde_json::from_str(self.objects).expect("objects in JSON")
    }

    pub(crate) fn pod(&self) -> Value {
        serde_json::from_str(self.pod).expect("a pod in JSON")
    }
}

/// The priority of a class, by its name, and whether its pods take the place of others: `p5`, `pm5` for -5, `never`.
pub(crate) fn priority(class: &str) -> (i64, &'static str) {
    match class {
        "never" => (100, "Never"),
        "system-cluster-critical" => (2_000_000_000, "PreemptLowerPriority"),
        class => {
            let value = class.strip_prefix('p').and_then(|value| value.replace('m', "-").parse().ok());
            (value.unwrap_or_else(|| panic!("{class} is no class of these cases")), "PreemptLowerPriority")
        }
    }
}
