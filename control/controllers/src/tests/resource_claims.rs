//! Claims of devices.

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};

use super::*;

fn claim_spec() -> Value {
    json!({"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu"}}]}})
}

fn template() -> Value {
    json!({"metadata": {"name": "t"}, "spec": {"spec": claim_spec()}})
}

fn allocation() -> Value {
    json!({"devices": {"results": [{"request": "one", "driver": "gpu.example.com", "pool": "p", "device": "d"}]}})
}

fn user(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "v1"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}, "status": {"phase": "Pending"}})
}

fn claim_name(pods: &[Value]) -> Option<&str> {
    pods.first()?["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str()
}

#[tokio::test]
async fn a_pods_claim_is_made_reserved_given_back_and_deleted() {
    let bed = Bed::new(Config::default()).await;
    put(&bed.api::<Pod>(), user("p")).await;
    let missing =
        "PodResourceClaim gpu: resource claim template \"t\": resourceclaimtemplate.resource.k8s.io \"t\" not found";
    let told = |e: &[Value]| e.iter().any(|e| e["reason"] == "FailedResourceClaimCreation" && e["message"] == missing);
    bed.server.until("events", "what is missing", told).await;
    put(&bed.api::<ResourceClaimTemplate>(), template()).await;
    let pods = bed.server.until("pods", "its claim", |p| claim_name(p).is_some()).await;
    let claims = bed.server.all("resourceclaims");
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0]["metadata"]["name"], claim_name(&pods).unwrap());
    assert_eq!(claims[0]["metadata"]["ownerReferences"][0]["uid"], pods[0]["metadata"]["uid"]);

    // Somebody allocates it and runs the pod without a reservation.
    let api: Api<ResourceClaim> = bed.api();
    let name = claim_name(&pods).unwrap();
    let held = json!({"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(held)).await.unwrap();
    let allocated = Patch::Merge(json!({"status": {"allocation": allocation()}}));
    api.patch_status(name, &PatchParams::default(), &allocated).await.unwrap();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "n"}});
    let request = http::Request::post("/api/v1/namespaces/default/pods/p/binding")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(binding.to_string().into_bytes())
        .unwrap();
    bed.client.request::<Value>(request).await.unwrap();
    let reserved = |c: &[Value]| c[0]["status"]["reservedFor"][0]["name"] == "p";
    bed.server.until("resourceclaims", "the reservation", reserved).await;

    // The pod ends: the devices are free, and the claim goes.
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    bed.api::<Pod>().patch_status("p", &PatchParams::default(), &ended).await.unwrap();
    bed.server.until("resourceclaims", "it goes", <[Value]>::is_empty).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(bed.server.all("resourceclaims").is_empty(), "none is made for a pod that has ended");
    bed.end().await;
}

#[tokio::test]
async fn a_manual_claim_stays_and_loses_gone_pods_reservations() {
    let bed = Bed::new(Config::default()).await;
    bed.server.until("serviceaccounts", "they run", |a| !a.is_empty()).await;
    let user = |name: &str, uid: &str| json!({"resource": "pods", "name": name, "uid": uid});
    let runs = json!({"metadata": {"name": "runs"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "v1"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}});
    // The watch is on hold: only the API has the pod.
    bed.server.faults.hold("pods", true);
    let runs = put(&bed.api::<Pod>(), runs).await.metadata.uid.unwrap();
    put(
        &bed.api::<ResourceClaim>(),
        json!({"metadata": {"name": "c", "finalizers": ["resource.kubernetes.io/delete-protection"]}, "spec": claim_spec(),
            "status": {"allocation": allocation(), "reservedFor": [user("gone", "x"), user("runs", &runs)]}}),
    )
    .await;
    let one = |c: &[Value]| c[0]["status"]["reservedFor"].as_array().is_some_and(|r| r.len() == 1);
    let left = bed.server.until("resourceclaims", "one reservation", one).await;
    assert_eq!(left[0]["status"]["reservedFor"][0]["name"], "runs");
    assert!(left[0]["status"]["allocation"].is_object());
    bed.api::<Pod>().delete("runs", &DeleteParams::default().grace_period(0)).await.unwrap();
    // A change of the claim, since no watch has shown the pod.
    let touch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    bed.api::<ResourceClaim>().patch("c", &PatchParams::default(), &touch).await.unwrap();
    let free = |c: &[Value]| c[0]["status"]["allocation"].is_null() && c[0]["metadata"]["finalizers"].is_null();
    bed.server.until("resourceclaims", "it is free", free).await;
    bed.end().await;
}

/// An answer that is lost makes no second claim.
#[tokio::test]
async fn a_claim_is_made_once_whatever_fails() {
    for (method, of) in [(Method::POST, "resourceclaims"), (Method::PATCH, "podsstatus")] {
        let bed = Bed::new(Config::default()).await;
        put(&bed.api::<ResourceClaimTemplate>(), template()).await;
        bed.server.lose_answer(method, of);
        put(&bed.api::<Pod>(), user("p")).await;
        let named = |p: &[Value]| claim_name(p).is_some();
        let pods = bed.server.until("pods", "its claim", named).await;
        let claims = bed.server.all("resourceclaims");
        assert_eq!(claims.len(), 1, "{of}");
        assert_eq!(claims[0]["metadata"]["name"], claim_name(&pods).unwrap());
        bed.end().await;
    }
}
