//! The storage class of the provisioner. It is made once in the life of a cluster, which a ConfigMap remembers: whoever
//! deletes the class is rid of it, and whoever deletes the ConfigMap gets it again with the next start.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::ConfigMap, storage::v1::StorageClass};
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use super::super::{
    runtime::{During as _, Error, error},
    storage::{DEFAULT_MARK, LOCAL_PATH_PROVISIONER, is_default},
};

const NAME: &str = "local-path";
const NAMESPACE: &str = "kube-system";
const RECORD: &str = "windlass-local-path";

/// Makes the class unless that was done before, or another one has its name.
pub(super) async fn ensure(client: &Client, classes: &[Arc<StorageClass>]) -> Result<(), Error> {
    let records: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    if records.get_opt(RECORD).await.during("look for the ConfigMap", &RECORD)?.is_some() {
        return Ok(());
    }
    let has_default = classes.iter().any(|class| is_default(class));
    make(&Api::<StorageClass>::all(client.clone()), class(!has_default), NAME).await?;
    let record = json!({"metadata": {"name": RECORD}, "data": {"storageClass": NAME}});
    make(&records, record, RECORD).await
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
fn class(default: bool) -> Value {
    json!({
        "metadata": {"name": NAME, "annotations": {DEFAULT_MARK: default.to_string()}},
        "provisioner": LOCAL_PATH_PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
    })
}
