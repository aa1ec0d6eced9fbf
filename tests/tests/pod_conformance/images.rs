//! Images: pull policies, credentials, and the image in the status.

use base64::Engine as _;
use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, eventually, shared_dir::container_status};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    pull_policy_of_latest_is_always,
    pull_policy_of_no_tag_is_always,
    pull_policy_of_a_tag_is_if_not_present,
    pull_policy_always_pulls_before_each_start,
    pull_policy_if_not_present_present,
    pull_policy_if_not_present_absent,
    pull_policy_never,
    pull_fails_after_it_has_started,
    image_pull_secrets_none,
    image_pull_secrets_missing,
    image_pull_secrets_docker_config_json,
    image_pull_secrets_legacy_docker_cfg,
    image_pull_secrets_tried_in_order,
    image_pull_secrets_longest_path_first,
    image_pulled_by_others_needs_credentials,
    event_pulled,
    image_id_is_the_repo_digest,
    image_by_digest,
    image_by_tag_and_digest,
];

/// An image of this case only in the public registry.
fn published(case: &Case<'_>) -> String {
    let name = format!("127.0.0.1:5000/{}:1", case.namespace);
    case.image(&name, &format!("LABEL row={}", case.namespace));
    let _ = case.testbed.docker(&["push", "-q", &name]);
    let _ = case.testbed.docker(&["rmi", &name]);
    name
}

fn policy(case: &Case<'_>, image: &str) -> String {
    case.shell("p", SLEEP_FOREVER, json!({"image": image}), json!({}));
    case.kubectl(&["get", "pod", "p", "-o", "jsonpath={.spec.containers[0].imagePullPolicy}"])
}

fn pull_policy_of_latest_is_always(case: &Case<'_>) {
    assert_eq!(policy(case, "busybox:latest"), "Always");
}

fn pull_policy_of_no_tag_is_always(case: &Case<'_>) {
    assert_eq!(policy(case, "busybox"), "Always");
    case.wait_ready("p");
}

fn pull_policy_of_a_tag_is_if_not_present(case: &Case<'_>) {
    assert_eq!(policy(case, "windlass/busybox:1"), "IfNotPresent");
}

/// How often the pod was told this; events of the same words, such as pulls of the same milliseconds, are one that counts.
fn count(case: &Case<'_>, words: &str) -> u64 {
    windlass_tests::shared_dir::event_count(&case.kubectl, "p", words)
}

fn pull_policy_always_pulls_before_each_start(case: &Case<'_>) {
    let image = published(case);
    let container = json!({"image": image, "imagePullPolicy": "Always"});
    case.shell("p", "[ -e /shared/again ] && exec sleep 100000; touch /shared/again; exit 1", container, json!({}));
    case.wait("p", "runs again", |p| container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true);
    let pulled = format!("Successfully pulled image \"{image}\"");
    eventually(DEFAULT_TIMEOUT, "it was pulled twice", || {
        anyhow::ensure!(count(case, &pulled) == 2, "{}", case.events("p"));
        Ok(())
    });
}

fn pull_policy_if_not_present_present(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"imagePullPolicy": "IfNotPresent"}), json!({}));
    case.wait_for_event("p", "Pulled Container image \"windlass/busybox:1\" already present on machine");
    assert_eq!(count(case, "Pulling"), 0);
}

fn pull_policy_if_not_present_absent(case: &Case<'_>) {
    let image = published(case);
    case.shell("p", SLEEP_FOREVER, json!({"image": image, "imagePullPolicy": "IfNotPresent"}), json!({}));
    case.wait_ready("p");
    case.wait_for_event("p", &format!("Pulling Pulling image \"{image}\""));
}

fn pull_policy_never(case: &Case<'_>) {
    let image = published(case);
    case.shell("p", SLEEP_FOREVER, json!({"image": image, "imagePullPolicy": "Never"}), json!({}));
    case.wait_waiting("p", "ErrImageNeverPull");
    let _ = case.testbed.docker(&["pull", "-q", &image]);
    case.shell("q", SLEEP_FOREVER, json!({"image": image, "imagePullPolicy": "Never"}), json!({}));
    case.wait_ready("q");
}

fn pull_fails_after_it_has_started(case: &Case<'_>) {
    let registry = case.failing_registry();
    for (pod, tag, why) in [("p", "windows", "no matching manifest"), ("q", "corrupt", "verification failed")] {
        let image = registry.image(&format!("{tag}-{}", case.namespace));
        case.shell(pod, SLEEP_FOREVER, json!({"image": image}), json!({}));
        case.wait_waiting(pod, "ErrImagePull");
        case.wait_for_event(pod, &format!("Failed Failed to pull image \"{image}\": "));
        case.wait_for_event(pod, "Failed Error: ErrImagePull");
        let output = case.wait_waiting(pod, "ImagePullBackOff");
        assert!(text(&output["message"]).contains(why), "{output}");
    }
}

/// The registry that requires `me` with `secret`, and two images in it.
fn private(case: &Case<'_>) -> String {
    let output = case.once("private-registry", |case| {
        case.registry_with_password();
        vec![String::new()]
    });
    assert_eq!(output.len(), 1);
    "127.0.0.1:5001/private/busybox:1".to_owned()
}

fn auth(user: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(format!("{user}:secret"))
}

fn secret(case: &Case<'_>, name: &str, kind: &str, file: &str, content: Value) {
    case.apply(&[json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "type": format!("kubernetes.io/{kind}"), "stringData": {file: content.to_string()}})]);
}

fn config(case: &Case<'_>, name: &str, registries: &[(&str, &str)]) {
    let auths: serde_json::Map<String, Value> =
        registries.iter().map(|(registry, user)| ((*registry).to_owned(), json!({"auth": auth(user)}))).collect();
    secret(case, name, "dockerconfigjson", ".dockerconfigjson", json!({"auths": auths}));
}

fn with(case: &Case<'_>, secrets: &[&str]) {
    let image = private(case);
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    let container = json!({"image": image, "imagePullPolicy": "Always"});
    case.shell("p", SLEEP_FOREVER, container, json!({"imagePullSecrets": secrets}));
}

fn image_pull_secrets_none(case: &Case<'_>) {
    with(case, &[]);
    case.wait_waiting("p", "ErrImagePull");
}

fn image_pull_secrets_missing(case: &Case<'_>) {
    with(case, &["none"]);
    case.wait_for_event("p", "FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (none)");
}

fn image_pull_secrets_docker_config_json(case: &Case<'_>) {
    config(case, "mine", &[("127.0.0.1:5001", "me")]);
    with(case, &["mine"]);
    case.wait_ready("p");
    assert!(!case.log().contains(&auth("me")), "no credentials in the log");
}

fn image_pull_secrets_legacy_docker_cfg(case: &Case<'_>) {
    secret(case, "old", "dockercfg", ".dockercfg", json!({"127.0.0.1:5001": {"auth": auth("me")}}));
    with(case, &["old"]);
    case.wait_ready("p");
}

fn image_pull_secrets_tried_in_order(case: &Case<'_>) {
    config(case, "wrong", &[("127.0.0.1:5001", "somebody")]);
    config(case, "right", &[("127.0.0.1:5001", "me")]);
    with(case, &["wrong", "right"]);
    case.wait_ready("p");
}

fn image_pull_secrets_longest_path_first(case: &Case<'_>) {
    config(case, "both", &[("127.0.0.1:5001", "somebody"), ("127.0.0.1:5001/private", "me")]);
    with(case, &["both"]);
    case.wait_ready("p");
    assert_eq!(count(case, "Failed"), 0);
}

/// An image that another pod has pulled with its secret is on the node: that gives access to no other pod.
fn image_pulled_by_others_needs_credentials(case: &Case<'_>) {
    config(case, "mine", &[("127.0.0.1:5001", "me")]);
    with(case, &["mine"]);
    case.wait_ready("p");
    let image = private(case);
    let container = json!({"image": image, "imagePullPolicy": "IfNotPresent"});
    case.shell("thief", SLEEP_FOREVER, container.clone(), json!({}));
    case.wait_waiting("thief", "ErrImagePull");
    let never = json!({"image": image, "imagePullPolicy": "Never"});
    case.shell("idle", SLEEP_FOREVER, never, json!({}));
    case.wait_waiting("idle", "ErrImageNeverPull");
    case.shell("owner", SLEEP_FOREVER, container, json!({"imagePullSecrets": [{"name": "mine"}]}));
    case.wait_ready("owner");
    // The same image, tagged locally with another name.
    case.shell("other", SLEEP_FOREVER, json!({"imagePullPolicy": "Never"}), json!({}));
    case.wait_ready("other");
}

fn event_pulled(case: &Case<'_>) {
    let image = published(case);
    case.shell("p", SLEEP_FOREVER, json!({"image": image}), json!({}));
    case.wait_ready("p");
    case.wait_for_event("p", &format!("Pulled Successfully pulled image \"{image}\" in "));
    let output = case.events("p");
    assert!(output.contains("including waiting). Image size: ") && output.contains(" bytes."), "{output}");
}

/// The digest of an image in the registry.
fn digest(case: &Case<'_>, image: &str) -> String {
    let _ = case.testbed.docker(&["pull", "-q", image]);
    let output = case.testbed.docker(&["inspect", "-f", "{{index .RepoDigests 0}}", image]);
    let _ = case.testbed.docker(&["rmi", image]);
    output.trim().rsplit('@').next().unwrap_or_default().to_owned()
}

fn image_id_is_the_repo_digest(case: &Case<'_>) {
    let image = published(case);
    let digest = digest(case, &image);
    case.shell("p", SLEEP_FOREVER, json!({"image": image}), json!({}));
    let pod = case.wait_ready("p");
    assert!(
        text(&container_status(&pod)["imageID"]).ends_with(&format!("{}@{digest}", case.namespace)),
        "{}",
        container_status(&pod)
    );
}

fn image_by_digest(case: &Case<'_>) {
    let image = published(case);
    let by = format!("{}@{}", image.trim_end_matches(":1"), digest(case, &image));
    case.shell("p", SLEEP_FOREVER, json!({"image": by}), json!({}));
    case.wait_ready("p");
}

fn image_by_tag_and_digest(case: &Case<'_>) {
    let image = published(case);
    // The digest decides; the tag does not exist.
    let by = format!("{}:none@{}", image.trim_end_matches(":1"), digest(case, &image));
    case.shell("p", SLEEP_FOREVER, json!({"image": by}), json!({}));
    case.wait_ready("p");
}
