//! ResourceQuota: a write that needs more than the quotas of its namespace allow is refused; what it uses is counted in the
//! same transaction as the write itself, so that no two writes use the same rest of a quota, and none that fails uses any.
//! Deletions and other changes of usage are counted in the same way.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use windlass_quota::{Evaluator, Quota, Request, check};

use crate::{
    apiserver::{AdmissionAttributes, AdmissionPlugin, ApiError, Operation},
    store::{Change, Companion, Object, ResourceId, Store},
};

const PLURAL: &str = "resourcequotas";

/// Refuses the write, or counts it.
#[derive(Debug)]
pub(super) struct ResourceQuota {
    store: Store,
    quotas: ResourceId,
}

impl ResourceQuota {
    pub(super) fn new(store: &Store) -> Self {
        Self { store: store.clone(), quotas: store.resource(PLURAL) }
    }

    /// The quotas of the namespace of a write, and how its object is counted. Without quotas nothing is decoded.
    fn quotas_of(&self, attributes: &AdmissionAttributes<'_>) -> Option<(Evaluator, Vec<Arc<Object>>)> {
        let namespace = attributes.target.namespace.as_deref()?;
        let (quotas, _) = self.store.list(self.quotas, Some(namespace));
        if quotas.is_empty() {
            return None;
        }
        let version = &attributes.target.version;
        Some((Evaluator::of(&version.group, &version.plural)?, quotas))
    }
}

fn request(
    attributes: &AdmissionAttributes<'_>,
    evaluator: Evaluator,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Request {
    let is_limited = new.is_some() && evaluator.limits(old.is_none(), attributes.target.subresource());
    Request { evaluator, old: old.cloned(), new: new.cloned(), is_limited }
}

#[async_trait]
impl AdmissionPlugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update | Operation::Delete)
    }

    async fn validate(&self, attributes: &AdmissionAttributes<'_>, object: &Value) -> Result<(), ApiError> {
        let is_new = attributes.operation == Operation::Create;
        if attributes.operation == Operation::Delete || is_new != attributes.old.is_none() {
            return Ok(());
        }
        let Some((evaluator, quotas)) = self.quotas_of(attributes) else { return Ok(()) };
        let request = request(attributes, evaluator, attributes.old, Some(object));
        if !request.is_limited {
            return Ok(());
        }
        let quotas: Vec<Quota> = quotas.iter().map(|quota| Quota::read(&quota.value())).collect();
        check(&quotas, &request, Timestamp::now()).map_err(|why| attributes.forbidden(object, &why))
    }

    fn companions(&self, attributes: &AdmissionAttributes<'_>, new: Option<&Value>) -> Vec<Companion> {
        let Some((evaluator, quotas)) = self.quotas_of(attributes) else { return Vec::new() };
        let is_quota = attributes.is_core(PLURAL);
        let request = Arc::new(request(attributes, evaluator, attributes.old, new));
        let now = Timestamp::now();
        let name = attributes.target.name();
        let counts = |quota: &Arc<Object>| {
            // A quota does not count a change of itself.
            let is_itself = is_quota && attributes.old.is_some() && quota.key.name == name;
            // It may be counted for the first time before the write is stored: the transaction looks again.
            !is_itself && !Quota::to_come(&quota.value()).difference(&request, now).is_empty()
        };
        let companion = |quota: Arc<Object>| {
            let request = Arc::clone(&request);
            let decide = move |quota: Option<&Object>| quota.map_or(Change::Keep, |quota| count(quota, &request));
            Companion { resource: self.quotas, key: quota.key.clone(), decide: Box::new(decide) }
        };
        quotas.into_iter().filter(counts).map(companion).collect()
    }
}

/// Counts a write in the quota as it is now. The time is that of the transaction: what the controller has counted before has
/// not begun to count since.
fn count(quota: &Object, request: &Request) -> Change {
    let mut value = quota.value();
    let before = Quota::read(&value);
    match before.used_after(request, Timestamp::now()) {
        None => Change::Refuse,
        Some(used) if used == *before.used() => Change::Keep,
        Some(used) => {
            value["status"]["used"] = used.write();
            Change::Put(value)
        }
    }
}
