//! What a pod or a container requests, as informers cache it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Deserializer};
use windlass_kit::quantity::Quantity;

/// Requests by resource, in thousandths; of most pods they take one small allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CachedRequests {
    cpu: Option<i64>,
    memory: Option<i64>,
    others: BTreeMap<Box<str>, i64>,
}

impl CachedRequests {
    /// Thousandths of a resource.
    pub(crate) fn milli(&self, resource: &str) -> Option<i64> {
        match resource {
            "cpu" => self.cpu,
            "memory" => self.memory,
            other => self.others.get(other).copied(),
        }
    }
}

/// Reads the requests of a `resources`; `None` for none.
pub(super) fn of_resources<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<CachedRequests>>, D::Error> {
    #[derive(Deserialize)]
    struct Resources {
        requests: Option<BTreeMap<String, ApiQuantity>>,
    }
    let resources: Option<Resources> = Option::deserialize(deserializer)?;
    let requests = resources.and_then(|resources| resources.requests).unwrap_or_default();
    if requests.is_empty() {
        return Ok(None);
    }
    let mut kept = Box::<CachedRequests>::default();
    for (name, quantity) in requests {
        let Ok(quantity) = quantity.0.parse::<Quantity>() else { continue };
        match name.as_str() {
            "cpu" => kept.cpu = Some(quantity.milli()),
            "memory" => kept.memory = Some(quantity.milli()),
            _ => drop(kept.others.insert(name.into(), quantity.milli())),
        }
    }
    Ok(Some(kept))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_thousandths() {
        let read = |resources| of_resources(resources).expect("requests");
        for none in [json!(null), json!({}), json!({"limits": {"cpu": "1"}}), json!({"requests": {}})] {
            assert_eq!(read(none), None);
        }
        let requests = read(json!({"requests": {"cpu": "1500u", "memory": "1Ki", "example.com/gpu": "2", "bad": "x"}}));
        let requests = requests.expect("some");
        let all = ["cpu", "memory", "example.com/gpu", "bad"].map(|name| requests.milli(name));
        assert_eq!(all, [Some(2), Some(1_024_000), Some(2000), None]);
    }
}
