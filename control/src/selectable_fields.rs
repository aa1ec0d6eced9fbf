//! The selectable fields of built-in kinds: upstream's lists. Pure.

use std::borrow::Cow;

use windlass_apimachinery::selectors::SelectableField;

use crate::registry::Gvk;

/// The fields beside name and namespace by which objects of a kind can be selected.
#[must_use]
pub fn of_kind(gvk: &Gvk) -> &'static [SelectableField] {
    match gvk.kind {
        "Pod" => POD,
        "Event" => EVENT,
        "Node" => NODE,
        "Namespace" => NAMESPACE,
        "Secret" => SECRET,
        "Service" => SERVICE,
        "ReplicationController" => REPLICATION_CONTROLLER,
        _ => &[],
    }
}

static POD: &[SelectableField] = &[
    SelectableField::path("spec.nodeName"),
    SelectableField::path("spec.restartPolicy"),
    SelectableField::path("spec.schedulerName"),
    SelectableField::path("spec.serviceAccountName"),
    SelectableField::with_absent("spec.hostNetwork", "false"),
    SelectableField::path("status.phase"),
    SelectableField::path("status.podIP"),
    // The first of several, as upstream compares lists of addresses.
    SelectableField::at("status.podIPs", &[Cow::Borrowed("status.podIPs.0.ip")]),
    SelectableField::path("status.nominatedNodeName"),
];

static EVENT: &[SelectableField] = &[
    SelectableField::path("involvedObject.kind"),
    SelectableField::path("involvedObject.namespace"),
    SelectableField::path("involvedObject.name"),
    SelectableField::path("involvedObject.uid"),
    SelectableField::path("involvedObject.apiVersion"),
    SelectableField::path("involvedObject.resourceVersion"),
    SelectableField::path("involvedObject.fieldPath"),
    SelectableField::path("reason"),
    SelectableField::path("reportingComponent"),
    // An event's source is selected by its component; newer events have it in another field.
    SelectableField::at("source", &[Cow::Borrowed("source.component"), Cow::Borrowed("reportingComponent")]),
    SelectableField::path("type"),
];

static NODE: &[SelectableField] = &[SelectableField::with_absent("spec.unschedulable", "false")];

static NAMESPACE: &[SelectableField] = &[SelectableField::path("status.phase")];

static SECRET: &[SelectableField] = &[SelectableField::path("type")];

static SERVICE: &[SelectableField] = &[SelectableField::path("spec.clusterIP"), SelectableField::path("spec.type")];

static REPLICATION_CONTROLLER: &[SelectableField] = &[SelectableField::with_absent("status.replicas", "0")];
