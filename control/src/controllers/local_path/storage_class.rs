//! The storage class of the provisioner. It is made once in the life of a cluster, which a ConfigMap remembers: whoever
//! deletes the class is rid of it, and whoever deletes the ConfigMap gets it again with the next start. The class allows
//! this machine's node only, so that no pod with a claim is sent to another one; a node of another name takes its place.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::ConfigMap, storage::v1::StorageClass};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::plan::HOSTNAME;
use crate::controllers::{
    runtime::{During as _, Error, error},
    storage::{DEFAULT_MARK, LOCAL_PATH_PROVISIONER, is_default},
};

const NAME: &str = "local-path";
const NAMESPACE: &str = "kube-system";
const RECORD: &str = "windlass-local-path";

/// Makes the class for a node unless that was done before, or another one has its name.
pub(super) async fn ensure(client: &Client, classes: &[Arc<StorageClass>], node: &str) -> Result<(), Error> {
    let records: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let api: Api<StorageClass> = Api::all(client.clone());
    let data = json!({"data": {"storageClass": NAME, "node": node}});
    let Some(record) = records.get_opt(RECORD).await.during("look for the ConfigMap", &RECORD)? else {
        let has_default = classes.iter().any(|class| is_default(class));
        make(&api, class(!has_default, node), NAME).await?;
        let mut record = data;
        record["metadata"] = json!({"name": RECORD});
        return make(&records, record, RECORD).await;
    };
    let before = record.data.as_ref().and_then(|data| data.get("node"));
    if before.is_some_and(|before| before == node) {
        return Ok(());
    }
    let known = classes.iter().find(|class| class.metadata.name.as_deref() == Some(NAME));
    if known.is_some_and(|class| is_of(class, before.map(String::as_str))) {
        let patch = Patch::Merge(json!({"allowedTopologies": allowed(node)}));
        let _ = api.patch(NAME, &PatchParams::default(), &patch).await.during("update the storage class", &NAME)?;
    }
    let _ = records
        .patch(RECORD, &PatchParams::default(), &Patch::Merge(data))
        .await
        .during("update the ConfigMap", &RECORD)?;
    Ok(())
}

/// Whether a class allows what the provisioner has made it allow: all, or the node of before.
fn is_of(class: &StorageClass, node: Option<&str>) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    class.provisioner == LOCAL_PATH_PROVISIONER && json!(terms) == node.map_or_else(|| json!([]), allowed)
}

/// Allows one node.
fn allowed(node: &str) -> Value {
    json!([{"matchLabelExpressions": [{"key": HOSTNAME, "values": [node]}]}])
}

async fn make<K>(api: &Api<K>, object: Value, name: &'static str) -> Result<(), Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object = windlass_kit::json::from_value(&object).map_err(kube::Error::SerdeError).during("make", &name)?;
    match api.create(&PostParams::default(), &object).await {
        Err(error) if error::is_already_exists(&error) => Ok(()),
        made => made.during("make", &name).map(drop),
    }
}

/// The class; it is the default one unless there is another.
fn class(default: bool, node: &str) -> Value {
    json!({
        "metadata": {"name": NAME, "annotations": {DEFAULT_MARK: default.to_string()}},
        "provisioner": LOCAL_PATH_PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
        "allowedTopologies": allowed(node),
    })
}
