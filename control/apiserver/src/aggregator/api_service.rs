//! What an APIService says of a group version and its server. Pure.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    apiserver::types::Priority,
    kinds::shared::conditions,
    store::Key,
    webhook::{ClientConfig, Location},
};

/// The condition that says whether requests are passed on.
pub(crate) const AVAILABLE: &str = "Available";
/// The group of APIServices, which this server itself serves in any case.
const OWN_GROUP: &str = "apiregistration.k8s.io";
const HTTPS_PORT: u16 = 443;

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ServicePort {
    pub(super) service: Key,
    pub(super) port: u16,
}

impl ServicePort {
    /// The service that an APIService names; `None` for one that this server itself serves.
    pub(super) fn of(api_service: &Value) -> Option<Self> {
        let service = &api_service["spec"]["service"];
        let text = |field: &str| service[field].as_str().unwrap_or("").to_owned();
        let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(HTTPS_PORT);
        service.is_object().then(|| Self { service: Key { namespace: text("namespace"), name: text("name") }, port })
    }
}

/// A group version that a Service serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiService {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) priority: Priority,
    pub(super) is_available: bool,
    pub(super) at: ServicePort,
    /// The way to it, or why its certificates cannot be read.
    pub(super) config: Result<ClientConfig, String>,
}

impl ApiService {
    /// What an APIService registers with a service; `None` for one without, and for the core group and that of APIServices,
    /// which nobody else may serve.
    pub(super) fn read(api_service: &Value) -> Option<Self> {
        let spec = &api_service["spec"];
        let at = ServicePort::of(api_service)?;
        let group = spec["group"].as_str().filter(|group| !group.is_empty() && *group != OWN_GROUP)?;
        let version = spec["version"].as_str()?;
        let number = |field: &str| spec[field].as_i64().unwrap_or_default();
        let bundle = STANDARD.decode(spec["caBundle"].as_str().unwrap_or(""));
        let config =
            bundle.map_err(|error| format!("caBundle is not in base64: {error}")).map(|ca_bundle| ClientConfig {
                location: Location::Service { service: at.service.clone(), port: at.port, path: "/".to_owned() },
                ca_bundle,
                skips_verification: spec["insecureSkipTLSVerify"] == true,
                is_front_proxy: true,
            });
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            priority: Priority { group: number("groupPriorityMinimum"), version: number("versionPriority") },
            is_available: conditions::is_true(api_service, AVAILABLE),
            at,
            config,
        })
    }

    /// The path of its list of resources.
    pub(super) fn path(&self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn services_are_registered() {
        let of = |group: &str, service: Value| {
            ApiService::read(&json!({"spec": {"group": group, "version": "v1", "service": service,
                "groupPriorityMinimum": 2000, "versionPriority": 15},
                "status": {"conditions": [{"type": "Available", "status": "True"}]}}))
        };
        let service = json!({"namespace": "n", "name": "s"});
        let found = of("a.example", service.clone()).unwrap();
        assert_eq!((found.at.port, found.is_available, found.path()), (443, true, "/apis/a.example/v1".to_owned()));
        assert_eq!(found.priority, Priority { group: 2000, version: 15 });
        let other = of("a.example", json!({"namespace": "n", "name": "s", "port": 7443})).unwrap();
        assert_eq!(other.at.port, 7443);
        // Nobody may take these from this server.
        assert_eq!(of("", service.clone()), None);
        assert_eq!(of("apiregistration.k8s.io", service), None);
        assert_eq!(of("a.example", Value::Null), None);
    }
}
