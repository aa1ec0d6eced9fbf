//! The FlowSchemas and PriorityLevelConfigurations that every cluster has: the mandatory ones always have their spec, the
//! suggested ones unless somebody has changed them, which an annotation says. Nothing here acts by them.

use kube::{
    Api as KubeApi, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{ControlPlane, Error, Wanted, objects::table};
use crate::apiserver::generate::now;

pub(super) const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
/// Whether the spec follows that of the server.
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// Without these no request would have a place.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// The objects.
pub(super) fn objects() -> impl Iterator<Item = Wanted> {
    table().filter(|(api_version, ..)| *api_version == API_VERSION).map(|(api_version, kind, name, object)| {
        let is_mandatory = MANDATORY.contains(&name.as_str());
        let revise = move |stored: Option<&Value>| revised(stored, &object["spec"], is_mandatory);
        Wanted { api_version, kind, namespace: "", name, has_status: false, revise: Box::new(revise) }
    })
}

/// What a stored object becomes; `None` if it stays. Pure.
pub(super) fn revised(stored: Option<&Value>, spec: &Value, is_mandatory: bool) -> Option<Value> {
    let Some(stored) = stored else {
        return Some(json!({"metadata": {"annotations": {AUTOUPDATE: "true"}}, "spec": spec}));
    };
    let annotation = stored["metadata"]["annotations"][AUTOUPDATE].as_str();
    let follows = is_mandatory
        || match annotation {
            // Go's words for booleans; any other counts as no annotation.
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => true,
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => false,
            // The first generation: no user has changed it.
            _ => stored["metadata"]["generation"] == 1,
        };
    let word = if follows { "true" } else { "false" };
    let mut object = stored.clone();
    if follows && object["spec"] != *spec {
        object["spec"] = spec.clone();
    }
    object["metadata"]["annotations"][AUTOUPDATE] = json!(word);
    (object != *stored).then_some(object)
}

/// Whether the priority level of a FlowSchema exists, as a condition. Pure.
fn dangling(level: &str, exists: bool) -> Value {
    let (status, reason, end) =
        if exists { ("False", "Found", "and it exists") } else { ("True", "NotFound", "but there is no such object") };
    let message = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {end}");
    json!({"type": "Dangling", "status": status, "reason": reason, "message": message})
}

/// Whether a condition says the same. Pure.
fn says(stored: &Value, wanted: &Value) -> bool {
    ["status", "reason", "message"].iter().all(|field| stored[field] == wanted[field])
}

impl ControlPlane {
    /// Says of each FlowSchema whether its priority level exists.
    pub(super) async fn set_flow_schema_status(&self, client: &Client) -> Result<(), Error> {
        let failed =
            |source| Error::Bootstrap { what: "the status of FlowSchemas".to_owned(), source: Box::new(source) };
        let of = |kind: &str| -> KubeApi<DynamicObject> {
            let gvk = GroupVersionKind::gvk("flowcontrol.apiserver.k8s.io", "v1", kind);
            KubeApi::all_with(client.clone(), &ApiResource::from_gvk(&gvk))
        };
        let schemas = of("FlowSchema");
        let levels = of("PriorityLevelConfiguration").list_metadata(&ListParams::default()).await.map_err(failed)?;
        for schema in schemas.list(&ListParams::default()).await.map_err(failed)?.items {
            let level = schema.data["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or("");
            let exists = levels.items.iter().any(|known| known.metadata.name.as_deref() == Some(level));
            let mut wanted = dangling(level, exists);
            let stored = schema.data["status"]["conditions"].as_array().into_iter().flatten();
            if stored
                .into_iter()
                .find(|stored| stored["type"] == "Dangling")
                .is_some_and(|stored| says(stored, &wanted))
            {
                continue;
            }
            wanted["lastTransitionTime"] = json!(now());
            let patch = Patch::Strategic(json!({"status": {"conditions": [wanted]}}));
            let name = schema.metadata.name.as_deref().unwrap_or_default();
            match schemas.patch_status(name, &PatchParams::default(), &patch).await {
                // Deleted since.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                patched => drop(patched.map_err(failed)?),
            }
        }
        Ok(())
    }
}
