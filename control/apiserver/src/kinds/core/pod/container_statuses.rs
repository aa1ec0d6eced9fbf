//! What a pod's status says of its containers: who they are, and how their devices do. Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    apiserver::pipeline::validation::errors::{Errors, list, text},
    kinds::shared::field::Field,
};

/// Containers and their statuses, in upstream's order.
const LISTS: [(&str, &str); 3] = [
    ("containers", "containerStatuses"),
    ("initContainers", "initContainerStatuses"),
    ("ephemeralContainers", "ephemeralContainerStatuses"),
];
const MAX_MESSAGE_BYTES: usize = 1024;
const OF_CLAIMS: &str = "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";

/// Validates the statuses of containers.
pub(super) fn validate(status: &Field<'_>, spec: &Value, errors: &mut Errors) {
    let is_windows = spec["os"]["name"] == "windows";
    for user in LISTS.iter().flat_map(|(_, statuses)| status.at(statuses).items()).map(|each| each.below("user.linux"))
    {
        if is_windows && user.is_set() {
            user.forbidden("cannot be set for a windows pod", errors);
        } else if user.is_set() {
            validate_user(&user, errors);
        }
    }
    for (containers, statuses) in LISTS {
        for each in status.at(statuses).items() {
            let allocated = each.at("allocatedResourcesStatus");
            if containers == "ephemeralContainers" {
                if !allocated.is_empty() {
                    allocated.forbidden("must not be specified in container status", errors);
                }
                continue;
            }
            let container = list(spec, containers).map(|(_, own)| own).find(|own| own["name"] == each.value["name"]);
            allocated.items().for_each(|resource| validate_resource(&resource, container, errors));
        }
    }
}

fn validate_user(user: &Field<'_>, errors: &mut Errors) {
    let ids = [user.at("uid"), user.at("gid")];
    for id in ids.into_iter().chain(user.at("supplementalGroups").items()) {
        if id.number().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
            id.invalid("must be between 0 and 2147483647, inclusive", errors);
        }
    }
}

/// Validates the health of what a container got of a resource.
fn validate_resource(resource: &Field<'_>, container: Option<&Value>, errors: &mut Errors) {
    let name = resource.at("name");
    if let Some(container) = container {
        let claim = |claim: &Value| match text(claim, "request") {
            "" => format!("claim:{}", text(claim, "name")),
            request => format!("claim:{}/{request}", text(claim, "name")),
        };
        let (found, why) = if name.text().starts_with("claim:") {
            (list(&container["resources"], "claims").any(|(_, own)| claim(own) == name.text()), OF_CLAIMS)
        } else {
            let requests = &container["resources"]["requests"];
            (requests.get(name.text()).is_some(), "must match one of the container's resource requests")
        };
        if !found {
            errors.invalid_text(&name.path, name.text(), why);
        }
    }
    let mut seen = BTreeSet::new();
    for device in resource.at("resources").items() {
        device.at("health").one_of(&["Healthy", "Unhealthy", "Unknown"], errors);
        let (message, id) = (device.at("message"), device.at("resourceID"));
        if message.is_set() && message.is_empty() {
            message.required("must be non-empty if specified", errors);
        }
        message.max_bytes(MAX_MESSAGE_BYTES, errors);
        if !seen.insert(id.text()) {
            errors.duplicate(&id.path, &Value::from(id.text()));
        }
    }
}
