use serde_json::{Value, json};

use super::{
    plan::{Named, claims_of, name_of, new_claim},
    *,
};

fn pod(change: Value) -> CachedPod {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}});
    json_patch::merge(&mut pod, &change);
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_claim_is_where_the_pod_or_its_status_says() {
    let of = |claim: Value, statuses: Value| {
        let pod = pod(json!({"spec": {"resourceClaims": [claim]}, "status": {"resourceClaimStatuses": statuses}}));
        let name = name_of(&pod, claims_of(&pod).next().unwrap());
        format!("{name:?}")
    };
    let by_template = json!({"name": "gpu", "resourceClaimTemplateName": "t"});
    let shown = |named: Named<'_>| format!("{named:?}");
    assert_eq!(of(json!({"name": "gpu", "resourceClaimName": "mine"}), json!([])), shown(Named::ByUser("mine")));
    assert_eq!(of(by_template.clone(), json!([])), shown(Named::NotMade));
    let given = json!([{"name": "gpu", "resourceClaimName": "p-gpu-x"}]);
    assert_eq!(of(by_template.clone(), given), shown(Named::Generated("p-gpu-x")));
    assert_eq!(of(by_template, json!([{"name": "gpu"}])), shown(Named::NotNeeded));
    assert_eq!(of(json!({"name": "gpu"}), json!([])), shown(Named::Unsupported));
}

#[test]
fn a_claim_has_what_its_template_says_and_is_its_pods() {
    let template = json!({"metadata": {"name": "t"}, "spec": {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu"}}]}}}});
    let claim = new_claim(&pod(json!({})), "gpu", &serde_json::from_value(template.clone()).unwrap());
    let claim = serde_json::to_value(claim).unwrap();
    assert_eq!(
        claim["metadata"],
        json!({"generateName": "p-gpu-", "labels": {"a": "b"},
        "annotations": {"c": "d", "resource.kubernetes.io/pod-claim-name": "gpu"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]})
    );
    assert_eq!(claim["spec"], template["spec"]["spec"]);
    // Of names that are too long there is something of both.
    let long = pod(json!({"metadata": {"name": "p".repeat(60)}}));
    let template = serde_json::from_value(template).unwrap();
    let name = new_claim(&long, &"c".repeat(20), &template).metadata.generate_name.unwrap();
    assert_eq!(name, format!("{}-{}", "p".repeat(41), "c".repeat(13)));
}
