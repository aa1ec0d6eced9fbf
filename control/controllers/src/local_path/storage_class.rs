//! The storage class of the provisioner. It is created once in the life of a cluster, which a ConfigMap records: a
//! deleted class stays deleted, unless the ConfigMap is deleted, too; then the next start creates it again. The class
//! allows this machine's node only, so that no pod with a claim is sent to another one; a node of another name takes
//! its place.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::ConfigMap, storage::v1::StorageClass};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::plan::HOSTNAME;
use crate::{
    runtime::{During as _, Error, error},
    storage::{DEFAULT_MARK, LOCAL_PATH_PROVISIONER, is_default},
};

const NAME: &str = "local-path";
const NAMESPACE: &str = "kube-system";
const RECORD: &str = "windlass-local-path";

/// What the ConfigMap remembers.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    /// The node that the class allows; `None` for all, as earlier versions had it.
    node: Option<String>,
    /// The node that the class is about to allow. It stays if the change was not seen to its end.
    next: Option<String>,
}

impl Record {
    fn of(map: &ConfigMap) -> Self {
        let entry = |key| map.data.as_ref().and_then(|data| data.get(key)).cloned();
        Self { node: entry("node"), next: entry("nextNode") }
    }

    fn change(node: Option<&str>, next: Option<&str>) -> Value {
        json!({"data": {"storageClass": NAME, "node": node, "nextNode": next}})
    }

    /// Whether a class is as the provisioner has made it, before a change or after one.
    fn describes(&self, class: &StorageClass) -> bool {
        is_of(class, self.node.as_deref()) || self.next.as_deref().is_some_and(|next| is_of(class, Some(next)))
    }
}

/// Makes the class for a node unless that was done before, or another one has its name.
pub(super) async fn ensure(client: &Client, classes: &[Arc<StorageClass>], node: &str) -> Result<(), Error> {
    let records: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let api: Api<StorageClass> = Api::all(client.clone());
    let known = classes.iter().find(|class| class.metadata.name.as_deref() == Some(NAME));
    let record = if let Some(record) = records.get_opt(RECORD).await.during("look for the ConfigMap", &RECORD)? {
        Record::of(&record)
    } else {
        // The start that made the class may have ended before it wrote this, and the node may have had another name.
        let made_for = known.and_then(|class| node_of(class));
        if made_for.is_none() {
            let has_default = classes.iter().any(|class| is_default(class));
            make(&api, class(!has_default, node), NAME).await?;
        }
        let made_for = made_for.unwrap_or(node);
        let record = json!({"metadata": {"name": RECORD}, "data": {"storageClass": NAME, "node": made_for}});
        make(&records, record, RECORD).await?;
        Record { node: Some(made_for.to_owned()), next: None }
    };
    if record == (Record { node: Some(node.to_owned()), next: None }) {
        return Ok(());
    }
    let remember = async |change| {
        let written = records.patch(RECORD, &PatchParams::default(), &Patch::Merge(change)).await;
        written.during("update the ConfigMap", &RECORD).map(drop)
    };
    if let Some(known) = known.filter(|class| record.describes(class) && !is_of(class, Some(node))) {
        // Without the intent, a start after an end between these writes would take the class for somebody's own.
        let at = if is_of(known, record.node.as_deref()) { &record.node } else { &record.next };
        remember(Record::change(at.as_deref(), Some(node))).await?;
        let patch = Patch::Merge(json!({"allowedTopologies": allowed(node)}));
        let _ = api.patch(NAME, &PatchParams::default(), &patch).await.during("update the storage class", &NAME)?;
    }
    remember(Record::change(Some(node), None)).await
}

/// Whether a class allows what the provisioner has made it allow: all, or the node of before.
fn is_of(class: &StorageClass, node: Option<&str>) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    class.provisioner == LOCAL_PATH_PROVISIONER && json!(terms) == node.map_or_else(|| json!([]), allowed)
}

/// The one node that a class of this provisioner allows.
fn node_of(class: &StorageClass) -> Option<&str> {
    let node = class.allowed_topologies.as_ref()?.first()?.match_label_expressions.as_ref()?.first()?.values.first()?;
    is_of(class, Some(node)).then_some(node.as_str())
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
