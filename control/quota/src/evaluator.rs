//! How the objects of a resource are counted. Pure.

use jiff::Timestamp;
use serde_json::Value;
use windlass_kit::quantity::Quantity;

use super::{ResourceList, claims, pods, services};

/// What the name of a count of objects begins with.
const COUNT_PREFIX: &str = "count/";

/// How the objects of a resource are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evaluator {
    Pods,
    Services,
    VolumeClaims,
    DeviceClaims,
    /// Each object counts one; some resources have a second name.
    Objects {
        count: String,
        alias: Option<&'static str>,
    },
}

/// Resources whose objects are counted by their plain names, too.
const ALIASES: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];

impl Evaluator {
    /// By the resource and its group. Events are not counted.
    pub fn of(group: &str, plural: &str) -> Option<Self> {
        Some(match (group, plural) {
            ("" | "events.k8s.io", "events") => return None,
            ("", "pods") => Self::Pods,
            ("", "services") => Self::Services,
            ("", "persistentvolumeclaims") => Self::VolumeClaims,
            ("resource.k8s.io", "resourceclaims") => Self::DeviceClaims,
            ("", _) => {
                let alias = ALIASES.into_iter().find(|alias| *alias == plural);
                Self::Objects { count: format!("{COUNT_PREFIX}{plural}"), alias }
            }
            _ => Self::Objects { count: format!("{COUNT_PREFIX}{plural}.{group}"), alias: None },
        })
    }

    /// The resource that is counted for a name of a quota: its plural and group, with a dot between them.
    pub fn resource_of(name: &str) -> Option<&str> {
        if let Some(counted) = name.strip_prefix(COUNT_PREFIX) {
            return Some(counted);
        }
        let known = [
            (Self::Pods, "pods"),
            (Self::Services, "services"),
            (Self::VolumeClaims, "persistentvolumeclaims"),
            (Self::DeviceClaims, "resourceclaims.resource.k8s.io"),
        ];
        let known = known.into_iter().find(|(evaluator, _)| evaluator.counts(name)).map(|(_, resource)| resource);
        known.or_else(|| ALIASES.into_iter().find(|alias| *alias == name))
    }

    /// The name by which all objects are counted.
    fn count(&self) -> &str {
        match self {
            Self::Pods => "count/pods",
            Self::Services => "count/services",
            Self::VolumeClaims => "count/persistentvolumeclaims",
            Self::DeviceClaims => "count/resourceclaims.resource.k8s.io",
            Self::Objects { count, .. } => count,
        }
    }

    /// Whether a resource of a quota is one of these objects.
    pub fn counts(&self, name: &str) -> bool {
        name == self.count()
            || match self {
                Self::Pods => pods::counts(name),
                Self::Services => services::counts(name),
                Self::VolumeClaims => claims::counts_volumes(name),
                Self::DeviceClaims => claims::counts_devices(name),
                Self::Objects { alias, .. } => *alias == Some(name),
            }
    }

    /// Whether nothing but the number of objects counts.
    pub const fn counts_only_objects(&self) -> bool {
        matches!(self, Self::Objects { .. })
    }

    /// What an object uses at a time, of all that may be counted.
    pub fn usage(&self, object: &Value, now: Timestamp) -> ResourceList {
        let one = Quantity::from_units(1);
        let mut usage = match self {
            Self::Pods => pods::usage(object, now),
            Self::Services => services::usage(object),
            Self::VolumeClaims => claims::usage_of_volume(object),
            Self::DeviceClaims => claims::usage_of_devices(object),
            Self::Objects { alias, .. } => {
                let mut usage = ResourceList::default();
                alias.iter().for_each(|alias| usage.set(*alias, one));
                usage
            }
        };
        usage.set(self.count(), one);
        usage
    }

    /// Whether a write may be refused: the others are counted alone.
    pub fn limits(&self, is_new: bool, subresource: &str) -> bool {
        match (self, subresource) {
            (Self::Pods, "") => is_new,
            (Self::Pods, "resize") => !is_new,
            (Self::Services | Self::VolumeClaims | Self::DeviceClaims, "") => true,
            (Self::Objects { .. }, "") => is_new,
            _ => false,
        }
    }

    /// What an object must state of the resources that are counted.
    pub fn check_stated<'a>(&self, object: &Value, counted: impl Iterator<Item = &'a str>) -> Result<(), String> {
        if *self == Self::Pods { pods::check_stated(object, counted) } else { Ok(()) }
    }
}
