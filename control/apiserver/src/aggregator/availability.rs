//! Whether an extension API server can be asked: the condition `Available` of its APIService, from what is known of its Service
//! and what it has answered. Pure.
//!
//! Upstream: `k8s.io/kube-aggregator/pkg/controllers/status`.

use serde_json::Value;

use super::api_service::ServicePort;
use crate::webhook::resolver;

/// A condition without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) status: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Finding {
    fn of(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }

    /// Of one that this server itself serves.
    pub(super) fn local() -> Self {
        Self::of("True", "Local", "Local APIServices are always available")
    }

    /// Of a server that has answered one of several requests, or why it has not answered the last of them.
    pub(super) fn probed(probes: Result<(), String>) -> Self {
        match probes {
            Ok(()) => Self::of("True", "Passed", "all checks passed"),
            Err(why) => Self::of("False", "FailedDiscoveryCheck", why),
        }
    }
}

/// Why a Service cannot be asked; `None` if it must be tried.
pub(super) fn check_service(at: &ServicePort, service: Option<&Value>, slices: &[Value]) -> Option<Finding> {
    let named = format!("service/{} in {:?}", at.service.name, at.service.namespace);
    let Some(service) = service else {
        return Some(Finding::of("False", "ServiceNotFound", format!("{named} is not present")));
    };
    // Other types may be reached by other means.
    if service["spec"]["type"].as_str().unwrap_or("ClusterIP") != "ClusterIP" {
        return None;
    }
    let Some(port_name) = resolver::port_name(service, at.port.into()) else {
        let why = format!("{named} is not listening on port {}", at.port);
        return Some(Finding::of("False", "ServicePortError", why));
    };
    if slices.is_empty() {
        let why = format!("cannot find endpointslices for {named}");
        return Some(Finding::of("False", "EndpointsNotFound", why));
    }
    let is_served =
        |slice: &Value| resolver::port_of(slice, &port_name).is_some() && resolver::ready(slice).next().is_some();
    if slices.iter().any(is_served) {
        return None;
    }
    let why = format!("endpointslices for {named} have no addresses with port name {port_name:?}");
    Some(Finding::of("False", "MissingEndpoints", why))
}

/// The result of several requests at a time: one success is enough, otherwise the last failure counts.
pub(super) fn last_failure(results: impl IntoIterator<Item = Result<(), String>>) -> Result<(), String> {
    let mut last = Ok(());
    for result in results {
        if result.is_ok() {
            return result;
        }
        last = result;
    }
    last
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::Key;

    /// Upstream's table (`TestSync` of the remote controller).
    #[test]
    fn what_is_known_of_a_service_decides() {
        let at = ServicePort { service: Key { namespace: "foo".to_owned(), name: "bar".to_owned() }, port: 1234 };
        let service = |kind: &str, port: u16, name: Value| {
            Some(json!({"spec": {"type": kind, "ports": [{"port": port, "name": name}]}}))
        };
        let slice = |port_name: &str, ready: Value| {
            json!({"ports": [{"name": port_name, "port": 6443}],
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]})
        };
        for (service, slices, wanted) in [
            (None, vec![], Some(("False", "ServiceNotFound", "service/bar in \"foo\" is not present"))),
            (
                service("ClusterIP", 6443, json!("wrong")),
                vec![slice("wrong", json!(true))],
                Some(("False", "ServicePortError", "service/bar in \"foo\" is not listening on port 1234")),
            ),
            (
                service("ClusterIP", 1234, json!(null)),
                vec![],
                Some(("False", "EndpointsNotFound", "cannot find endpointslices for service/bar in \"foo\"")),
            ),
            (
                service("ClusterIP", 1234, json!("testPort")),
                vec![json!({"ports": [{"name": "testPort", "port": 1}], "endpoints": []})],
                Some((
                    "False",
                    "MissingEndpoints",
                    "endpointslices for service/bar in \"foo\" have no addresses with port name \"testPort\"",
                )),
            ),
            (
                service("ClusterIP", 1234, json!("testPort")),
                vec![slice("wrongName", json!(true)), slice("testPort", json!(false))],
                Some((
                    "False",
                    "MissingEndpoints",
                    "endpointslices for service/bar in \"foo\" have no addresses with port name \"testPort\"",
                )),
            ),
            (service("ClusterIP", 1234, json!("a")), vec![slice("a", json!(true))], None),
            (service("ClusterIP", 1234, json!(null)), vec![slice("", json!(null))], None),
            // Nothing of these says that they cannot be reached.
            (service("ExternalName", 1, json!("a")), vec![], None),
            (service("NodePort", 1, json!("a")), vec![], None),
        ] {
            let found = check_service(&at, service.as_ref(), &slices);
            let found = found.as_ref().map(|found| (found.status, found.reason, found.message.as_str()));
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn one_answer_is_enough() {
        let failed = |why: &str| Err(why.to_owned());
        for (results, wanted) in [
            (vec![failed("a"), Ok(()), failed("b")], Ok(())),
            (vec![failed("a"), failed("b")], failed("b")),
            (vec![Ok(())], Ok(())),
        ] {
            assert_eq!(last_failure(results), wanted);
        }
        let found = Finding::probed(failed("no"));
        assert_eq!((found.status, found.reason), ("False", "FailedDiscoveryCheck"));
        assert_eq!(Finding::probed(Ok(())).message, "all checks passed");
    }
}
