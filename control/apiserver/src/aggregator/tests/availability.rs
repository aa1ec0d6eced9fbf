//! What the condition says as an extension comes and goes.

use super::*;

#[tokio::test]
async fn the_condition_follows_the_service_and_what_it_answers() {
    let bed = Bed::empty().await;
    let one = format!("{API_SERVICES}/v1.ext.example");
    let becomes = async |status: &str, reason: &str, message: &str| {
        let wanted = (status.to_owned(), reason.to_owned(), message.to_owned());
        let reply = bed.until(&one, |reply| available(&reply.body) == wanted).await;
        reply.body
    };
    bed.register(GROUP, "v1", (2000, 15)).await;
    becomes("False", "ServiceNotFound", "service/api in \"ext\" is not present").await;
    assert_eq!(bed.get(THINGS).await, (503, "service unavailable\n".to_owned()));
    bed.create("/api/v1/namespaces/ext/services", ExtensionServer::service()).await;
    becomes("False", "EndpointsNotFound", "cannot find endpointslices for service/api in \"ext\"").await;
    let mut unready = bed.server.slice();
    unready["endpoints"][0]["conditions"]["ready"] = json!(false);
    bed.put_slice(Some(unready)).await;
    let missing = "endpointslices for service/api in \"ext\" have no addresses with port name \"https\"";
    becomes("False", "MissingEndpoints", missing).await;
    bed.server.act(Act::ForbidAll);
    bed.put_slice(Some(bed.server.slice())).await;
    let url = format!("https://{}/apis/ext.example/v1", bed.server.address);
    let forbidden = format!("failing or missing response from {url}: bad status from {url}: 403");
    becomes("False", "FailedDiscoveryCheck", &forbidden).await;
    bed.server.act(Act::Whole);
    let passed = becomes("True", "Passed", "all checks passed").await;
    // The time is that of the last change of the status.
    let since = passed["status"]["conditions"][0]["lastTransitionTime"].clone();
    assert!(since.is_string(), "{passed}");
    assert_eq!(bed.get(THINGS).await.0, 200);
    // Conditions of others stay.
    let others = json!({"status": {"conditions": [{"type": "Other", "status": "True"}]}});
    assert_eq!(call(&bed.api, "PATCH", &format!("{one}/status"), others).await.code, 200);
    let object = becomes("True", "Passed", "all checks passed").await;
    let types: Vec<&str> =
        object["status"]["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["Other", "Available"]);
    // A port that the Service does not have.
    let patch = |port: u16| json!({"spec": {"service": {"port": port}}});
    assert_eq!(call(&bed.api, "PATCH", &one, patch(444)).await.code, 200);
    becomes("False", "ServicePortError", "service/api in \"ext\" is not listening on port 444").await;
    assert_eq!(call(&bed.api, "PATCH", &one, patch(443)).await.code, 200);
    becomes("True", "Passed", "all checks passed").await;
    bed.server.die();
    bed.put_slice(Some(bed.server.slice())).await;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(call(&bed.api, "PATCH", &one, label).await.code, 200);
    let refused = format!(
        "failing or missing response from {url}: Get \"{url}\": dial tcp {}: connect: connection refused",
        bed.server.address
    );
    becomes("False", "FailedDiscoveryCheck", &refused).await;
    assert_eq!(bed.get(THINGS).await, (503, "service unavailable\n".to_owned()));
    bed.put_slice(None).await;
    becomes("False", "EndpointsNotFound", "cannot find endpointslices for service/api in \"ext\"").await;
}

#[tokio::test]
async fn a_server_with_another_certificate_is_not_available() {
    let bed = Bed::empty().await;
    bed.serve().await;
    let other = ExtensionServer::start("127.0.0.1").await;
    bed.create(API_SERVICES, other.api_service(GROUP, "v1", (2000, 15))).await;
    let one = format!("{API_SERVICES}/v1.ext.example");
    let reply = bed.until(&one, |reply| available(&reply.body).1 == "FailedDiscoveryCheck").await;
    let message = available(&reply.body).2;
    assert!(message.contains("x509: certificate signed by unknown authority"), "{message}");
    // Who wants it so may have it without verification.
    let unverified = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    assert_eq!(call(&bed.api, "PATCH", &one, unverified).await.code, 200);
    bed.until_available("v1.ext.example").await;
    assert_eq!(bed.get(THINGS).await.0, 200);
}

#[tokio::test]
async fn own_api_services_are_available_and_come_back() {
    let bed = Bed::empty().await;
    let apps = format!("{API_SERVICES}/v1.apps");
    let made = bed.until(&apps, |reply| reply.code == 200).await.body;
    assert_eq!(available(&made).1, "Local");
    assert_eq!(made["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "onstart");
    assert_eq!(call(&bed.api, "DELETE", &apps, Value::Null).await.code, 200);
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    bed.until(&apps, |reply| reply.code == 200 && uid(&reply.body) != uid(&made)).await;
    assert_eq!(bed.get("/apis/apps/v1").await.0, 200);
}
