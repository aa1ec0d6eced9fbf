//! Server-side apply: two managers of one object.

use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{has_code, with_client};
use crate::server::Server;

fn service(ports: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shared"}, "spec": {"ports": ports}})
}

pub(super) fn managers_share_an_object_by_apply(server: &Server) {
    let _ = server.objects("applied");
    with_client(server, |client| async move {
        let api: Api<Service> = Api::namespaced(client, "applied");
        let apply = async |manager: &str, ports: Value, force: bool| {
            let params = if force { PatchParams::apply(manager).force() } else { PatchParams::apply(manager) };
            api.patch("shared", &params, &Patch::Apply(service(&ports))).await
        };
        let web = |target: u16| json!({"name": "web", "port": 80, "targetPort": target});
        let metrics = json!({"name": "metrics", "port": 9090});
        apply("one", json!([web(8080)]), false).await?;
        // Items of the list are merged by their keys, and each belongs to its manager.
        let both = apply("two", json!([metrics]), false).await?;
        anyhow::ensure!(both.spec.and_then(|s| s.ports).is_some_and(|ports| ports.len() == 2));
        anyhow::ensure!(
            has_code(&apply("two", json!([web(8081), metrics]), false).await, 409),
            "another's field changed"
        );
        apply("two", json!([web(8081), metrics]), true).await?;
        anyhow::ensure!(has_code(&apply("one", json!([web(8080)]), false).await, 409), "a lost field changed");
        // A field that a manager no longer applies is removed, unless it has other owners.
        let left = apply("two", json!([web(8081)]), false).await?;
        let ports = left.spec.and_then(|s| s.ports).unwrap_or_default();
        anyhow::ensure!(ports.len() == 1 && ports[0].name.as_deref() == Some("web"), "{ports:?}");
        let managers: Vec<_> =
            left.metadata.managed_fields.into_iter().flatten().filter_map(|entry| entry.manager).collect();
        anyhow::ensure!(managers.contains(&"one".to_owned()) && managers.contains(&"two".to_owned()), "{managers:?}");
        Ok(())
    });
}
