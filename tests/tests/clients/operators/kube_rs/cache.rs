//! The operator's own type, in its newer version.

use std::borrow::Cow;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::GROUP;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cache {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: ObjectMeta,
    pub(super) spec: CacheSpec,
    pub(super) status: Option<CacheStatus>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CacheSpec {
    pub(super) replicas: i32,
    pub(super) memory: Memory,
    pub(super) tier: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Memory {
    pub(super) limit: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CacheStatus {
    pub(super) replicas: i32,
    pub(super) selector: String,
    pub(super) observed_generation: i64,
}

impl Resource for Cache {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Cache".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "caches".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
