//! Owners of `spec.replicas` as the `scale` subresource shows them. Upstream: `managedfields/scalehandler.go`.

use serde_json::Value;

use super::{
    managers::{Managers, ManagersError, Operation, Owned},
    path::PathElement,
    set::FieldSet,
};

/// The version of `Scale`.
const SCALE: &str = "autoscaling/v1";

/// Where a resource has its replicas.
#[derive(Debug, Clone)]
pub struct ScaleManagers<'a> {
    /// The version of the resource in the request.
    pub api_version: String,
    /// The path of the replicas in each version that has a scale, such as `spec`, `replicas`. Who owns fields of another
    /// version keeps them.
    pub replicas: &'a [(String, Vec<String>)],
}

impl ScaleManagers<'_> {
    fn path(&self, api_version: &str) -> Option<Vec<PathElement>> {
        let (_, path) = self.replicas.iter().find(|(version, _)| version == api_version)?;
        Some(path.iter().map(|name| PathElement::Field(name.clone())).collect())
    }
}

fn replicas_of_scale() -> Vec<PathElement> {
    ["spec", "replicas"].map(|name| PathElement::Field(name.to_owned())).to_vec()
}

fn only(path: &[PathElement]) -> FieldSet {
    let mut set = FieldSet::default();
    set.insert(path);
    set
}

/// The managed fields of a `Scale`, from those of its resource.
///
/// # Errors
/// When those of the resource cannot be read.
pub fn to_scale(scale: &ScaleManagers<'_>, of_parent: &Value) -> Result<Option<Value>, ManagersError> {
    let mut out = Managers::default();
    for (id, owned) in Managers::decode(of_parent)?.0 {
        if scale.path(&owned.api_version).is_some_and(|path| owned.fields.has(&path)) {
            let fields = only(&replicas_of_scale());
            out.0.insert(id, Owned { fields, api_version: SCALE.to_owned(), time: owned.time });
        }
    }
    Ok(out.encode())
}

/// The managed fields of a resource after a write of its `Scale`: replicas change hands, all else stays.
///
/// # Errors
/// When one of the two cannot be read.
pub fn to_parent(
    scale: &ScaleManagers<'_>,
    of_parent: &Value,
    of_scale: &Value,
) -> Result<Option<Value>, ManagersError> {
    let mut scale_managers = Managers::decode(of_scale)?;
    // Their identity has the version of Scale; the resource's managers have that of the resource.
    let parent = Managers::decode(of_parent)?;
    let mut out = Managers::default();
    for (id, mut owned) in parent.0.clone() {
        let Some(path) = scale.path(&owned.api_version) else {
            out.0.insert(id, owned);
            continue;
        };
        let mut id_in_scale = id.clone();
        if id.operation == Operation::Update {
            SCALE.clone_into(&mut id_in_scale.api_version);
        }
        if owned.fields.has(&path) && scale_managers.0.remove(&id_in_scale).is_none() {
            owned.fields = owned.fields.difference(&only(&path));
        }
        if !owned.fields.is_empty() {
            out.0.insert(id, owned);
        }
    }
    let path = scale.path(&scale.api_version).unwrap_or_default();
    for (mut id, mut owned) in scale_managers.0 {
        if !owned.fields.has(&replicas_of_scale()) {
            continue;
        }
        // As upstream's: only appliers keep a time.
        owned.time = parent.0.get(&id).map(|of_parent| of_parent.time.clone()).unwrap_or_default();
        if id.operation == Operation::Update {
            scale.api_version.clone_into(&mut id.api_version);
        }
        owned.fields = only(&path);
        scale.api_version.clone_into(&mut owned.api_version);
        out.0.insert(id, owned);
    }
    Ok(out.encode())
}
