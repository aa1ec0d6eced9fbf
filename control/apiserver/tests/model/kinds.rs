//! The kinds that are modelled, and the fields of them that requests change.

use serde_json::{Value, json};

/// A kind, chosen for how it differs from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Nothing but metadata and data.
    ConfigMap,
    /// Created by an update too; updates need a resource version.
    Lease,
    /// Ends with a grace period once it is on a node; most of its spec never changes.
    Pod,
    /// Its dependents stay by default; has a default in its spec.
    ReplicationController,
}

pub(crate) const KINDS: [Kind; 4] = [Kind::ConfigMap, Kind::Lease, Kind::Pod, Kind::ReplicationController];

impl Kind {
    pub(crate) fn collection(self) -> &'static str {
        match self {
            Self::ConfigMap => "/api/v1/namespaces/default/configmaps",
            Self::Lease => "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            Self::Pod => "/api/v1/namespaces/default/pods",
            Self::ReplicationController => "/api/v1/namespaces/default/replicationcontrollers",
        }
    }

    pub(crate) fn has_status(self) -> bool {
        matches!(self, Self::Pod | Self::ReplicationController)
    }

    /// Whether objects have a generation, which counts changes of their specs.
    pub(crate) fn has_generation(self) -> bool {
        self.has_status()
    }

    /// Whether the managers of its fields are modelled: of kinds whose objects are as clients send them, without defaults.
    pub(crate) fn is_managed(self) -> bool {
        !self.has_status()
    }

    pub(crate) fn create_on_update(self) -> bool {
        self == Self::Lease
    }

    pub(crate) fn needs_revision(self) -> bool {
        self == Self::Lease
    }

    /// Whether a deletion answers with the object, and not with a Status.
    pub(crate) fn returns_deleted(self) -> bool {
        self == Self::Pod
    }

    /// The body of a new object of this name.
    pub(crate) fn template(self, name: &str) -> Value {
        let mut object = match self {
            Self::ConfigMap => json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"base": "1"}}),
            Self::Lease => {
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"leaseTransitions": 1}})
            }
            Self::Pod => {
                json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "i:1"}]}})
            }
            Self::ReplicationController => json!({
                "apiVersion": "v1", "kind": "ReplicationController",
                "spec": {"selector": {"a": "b"}, "template": {
                    "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "i:1"}]},
                }},
            }),
        };
        object["metadata"] = json!({"name": name, "labels": {"base": "1"}});
        object
    }

    pub(crate) fn fields(self) -> &'static [Field] {
        match self {
            Self::ConfigMap => CONFIG_MAP,
            Self::Lease => LEASE,
            Self::Pod => POD,
            Self::ReplicationController => REPLICATION_CONTROLLER,
        }
    }

    pub(crate) fn field(self, pointer: &str) -> &'static Field {
        self.fields().iter().find(|field| field.pointer == pointer).expect("a field of this kind")
    }
}

/// Which path writes a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Metadata,
    Spec,
    Status,
}

/// What the server does with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Any value, or none.
    Free,
    /// Always has a value.
    Required,
    /// Always has the same value, from the template of new objects: what is next to it has somewhere to be.
    Base,
    /// Without a value it gets this one.
    Default(u64),
    /// Never changes.
    Immutable,
    /// Once set, it may only become smaller.
    Shrinking,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) pointer: &'static str,
    pub(crate) part: Part,
    pub(crate) rule: Rule,
    values: &'static [&'static str],
}

impl Field {
    /// Whether its managers are modelled.
    pub(crate) fn is_managed(&self) -> bool {
        self.pointer != OWNERS
    }

    /// The `number`th of a few values.
    pub(crate) fn value(&self, number: u8) -> Value {
        serde_json::from_str(self.values[usize::from(number) % self.values.len()]).expect("JSON in the table")
    }
}

const fn field(pointer: &'static str, part: Part, rule: Rule, values: &'static [&'static str]) -> Field {
    Field { pointer, part, rule, values }
}

const LABEL_BASE: Field = field("/metadata/labels/base", Part::Metadata, Rule::Base, &["\"1\""]);
const LABEL_A: Field = field("/metadata/labels/a", Part::Metadata, Rule::Free, &["\"1\"", "\"2\"", "\"\""]);
const LABEL_B: Field = field("/metadata/labels/b", Part::Metadata, Rule::Free, &["\"1\"", "\"2\""]);
pub(crate) const OWNERS: &str = "/metadata/ownerReferences";
const OWNER: Field = field(
    OWNERS,
    Part::Metadata,
    Rule::Free,
    &[r#"[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"0f0e6a3c-8d9a-4b43-9f5e-0123456789ab"}]"#],
);

const CONFIG_MAP: &[Field] = &[
    LABEL_BASE,
    field("/data/base", Part::Spec, Rule::Base, &["\"1\""]),
    LABEL_A,
    LABEL_B,
    OWNER,
    field("/data/a", Part::Spec, Rule::Free, &["\"1\"", "\"2\"", "\"\""]),
    field("/data/b", Part::Spec, Rule::Free, &["\"1\"", "\"2\""]),
];

const LEASE: &[Field] = &[
    LABEL_BASE,
    field("/spec/leaseTransitions", Part::Spec, Rule::Base, &["1"]),
    LABEL_A,
    OWNER,
    field("/spec/holderIdentity", Part::Spec, Rule::Free, &["\"x\"", "\"y\""]),
    field("/spec/leaseDurationSeconds", Part::Spec, Rule::Free, &["10", "20"]),
];

pub(crate) const NODE_NAME: &str = "/spec/nodeName";
pub(crate) const SPEC_GRACE: &str = "/spec/terminationGracePeriodSeconds";
pub(crate) const PHASE: &str = "/status/phase";

const POD: &[Field] = &[
    LABEL_A,
    LABEL_B,
    OWNER,
    field("/spec/containers/0/image", Part::Spec, Rule::Required, &["\"i:1\"", "\"i:2\"", "\"i:3\""]),
    field("/spec/activeDeadlineSeconds", Part::Spec, Rule::Shrinking, &["100", "50", "9"]),
    field(NODE_NAME, Part::Spec, Rule::Immutable, &["\"n\""]),
    field(SPEC_GRACE, Part::Spec, Rule::Default(30), &["30"]),
    field("/spec/hostname", Part::Spec, Rule::Immutable, &["\"h\""]),
    field(PHASE, Part::Status, Rule::Required, &["\"Running\"", "\"Succeeded\"", "\"Pending\""]),
    field("/status/message", Part::Status, Rule::Free, &["\"m\"", "\"n\""]),
];

const REPLICATION_CONTROLLER: &[Field] = &[
    LABEL_A,
    OWNER,
    field("/spec/replicas", Part::Spec, Rule::Default(1), &["1", "2", "3"]),
    field("/spec/minReadySeconds", Part::Spec, Rule::Free, &["5", "6"]),
    field("/status/replicas", Part::Status, Rule::Required, &["0", "1", "2"]),
    field("/status/observedGeneration", Part::Status, Rule::Free, &["1", "2"]),
];
