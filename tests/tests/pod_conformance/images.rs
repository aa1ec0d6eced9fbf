//! Images: pull policies, credentials, and the image in the status.

use base64::Engine as _;
use serde_json::{Value, json};
use windlass_tests::{
    DEFAULT_TIMEOUT, eventually,
    shared_dir::{container_status, shell},
};

use crate::case::{Case, SLEEP_FOREVER, text};

crate::cases![
    pull_policy_of_latest_is_always,
    pull_policy_of_no_tag_is_always,
    pull_policy_of_a_tag_is_if_not_present,
    pull_policy_always_pulls_before_each_start,
    an_image_is_pulled_ahead_once,
    pull_policy_if_not_present_present,
    pull_policy_if_not_present_absent,
    pull_policy_never,
    pull_fails_after_it_has_started,
    pull_from_a_registry_that_refuses,
    pull_from_a_slow_registry,
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
    image_update_in_the_same_sandbox,
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

/// How many such events the pod has; identical ones, such as of pulls that took equally long, are one with a count.
fn count(case: &Case<'_>, pod: &str, words: &str) -> u64 {
    windlass_tests::shared_dir::event_count(&case.kubectl, pod, words)
}

fn pull_policy_always_pulls_before_each_start(case: &Case<'_>) {
    let image = published(case);
    let container = json!({"image": image, "imagePullPolicy": "Always"});
    case.shell("p", "[ -e /shared/again ] && exec sleep 100000; touch /shared/again; exit 1", container, json!({}));
    case.wait("p", "runs again", |p| container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true);
    let pulled = format!("Successfully pulled image \"{image}\"");
    eventually(DEFAULT_TIMEOUT, "it was pulled twice", || {
        anyhow::ensure!(count(case, "p", &pulled) == 2, "{}", case.events("p"));
        Ok(())
    });
}

/// Pulled while its init container runs, the image stays present, whatever else is pulled: Docker reports each pull to
/// all pods.
fn an_image_is_pulled_ahead_once(case: &Case<'_>) {
    let image = published(case);
    let waits = json!({"name": "init", "command": shell("until [ -e /shared/go ]; do sleep 0.1; done")});
    let pods = ["p", "q"];
    for pod in pods {
        let container = json!({"image": image, "imagePullPolicy": "Always"});
        case.shell(pod, SLEEP_FOREVER, container, json!({"initContainers": [waits]}));
    }
    let pulled = format!("Successfully pulled image \"{image}\"");
    for pod in pods {
        case.wait_for_event(pod, &format!("Pulled {pulled}"));
    }
    for _ in 0..5 {
        let _ = case.testbed.docker(&["pull", "-q", &image]);
    }
    std::fs::write(case.shared.0.join("go"), "").expect("the folder is there");
    for pod in pods {
        case.wait_ready(pod);
        assert_eq!(count(case, pod, &pulled), 1, "{}", case.events(pod));
    }
}

fn pull_policy_if_not_present_present(case: &Case<'_>) {
    case.shell("p", SLEEP_FOREVER, json!({"imagePullPolicy": "IfNotPresent"}), json!({}));
    case.wait_for_event("p", "Pulled Container image \"windlass/busybox:1\" already present on machine");
    assert_eq!(count(case, "p", "Pulling"), 0);
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

/// What a registry answers, the reason that is shown first, and words of Docker's in the message. All are pulled again with a
/// back-off, whatever the answer was, and work as soon as the registry does.
fn pull_from_a_registry_that_refuses(case: &Case<'_>) {
    let registry = case.failing_registry();
    let table = [
        (401, "ErrImagePull", "unauthorized: the registry says so"),
        (403, "ErrImagePull", "denied: the registry says so"),
        (404, "ErrImagePull", "manifest unknown: the registry says so"),
        (429, "ErrImagePull", "toomanyrequests: the registry says so"),
        (500, "ErrImagePull", "received unexpected HTTP status: 500 Internal Server Error"),
        (502, "RegistryUnavailable", "received unexpected HTTP status: 502 Bad Gateway"),
        (503, "RegistryUnavailable", "received unexpected HTTP status: 503 Service Unavailable"),
    ];
    let pod_of = |status: u16| format!("p{status}");
    for (status, ..) in table {
        let image = registry.image(&format!("status-{status}-{}", case.namespace));
        case.shell(&pod_of(status), SLEEP_FOREVER, json!({"image": image}), json!({}));
    }
    for (status, reason, words) in table {
        let (pod, image) = (pod_of(status), registry.image(&format!("status-{status}-{}", case.namespace)));
        let backed_off = case.wait_waiting(&pod, "ImagePullBackOff");
        let message = text(&backed_off["message"]);
        let expected = format!("Back-off pulling image \"{image}\": {reason}: ");
        assert!(message.starts_with(&expected) && message.contains(words), "{status}: {backed_off}");
        case.wait_for_event(&pod, &format!("Failed Failed to pull image \"{image}\": "));
        case.wait_for_event(&pod, &format!("Failed Error: {reason}"));
        case.wait_for_event(&pod, &format!("BackOff Back-off pulling image \"{image}\""));
    }
    registry.heal();
    for (status, ..) in table {
        case.wait_ready(&pod_of(status));
    }
}

fn pull_from_a_slow_registry(case: &Case<'_>) {
    let image = case.failing_registry().image(&format!("slow-{}", case.namespace));
    case.shell("p", SLEEP_FOREVER, json!({"image": image}), json!({}));
    case.wait_ready("p");
    case.wait_for_event("p", &format!("Pulled Successfully pulled image \"{image}\""));
    assert_eq!(count(case, "p", "Failed"), 0, "{}", case.events("p"));
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
    assert_eq!(count(case, "p", "Failed"), 0);
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

/// What OpenKruise's update in place waits for: the name or the id of the new image, and not before its container runs.
fn image_update_in_the_same_sandbox(case: &Case<'_>) {
    let newer = "windlass/updated:2";
    case.image(newer, "LABEL row=2");
    let wait_a_moment = json!({"preStop": {"sleep": {"seconds": 1}}});
    let containers = json!([
        {"name": "main", "image": "windlass/busybox:1", "command": shell(SLEEP_FOREVER), "lifecycle": wait_a_moment},
        {"name": "side", "image": "windlass/busybox:1", "command": shell(SLEEP_FOREVER)},
    ]);
    case.pod("p", json!({"containers": containers, "terminationGracePeriodSeconds": 3}));
    let before = case.wait_ready("p");
    let sandbox = case.running_ids("p", "POD");
    let patch = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": newer}]).to_string();
    let _ = case.kubectl(&["patch", "pod", "p", "--type=json", "-p", &patch]);
    let old = container_status(&before).clone();
    let after = case.wait("p", "runs the new image", |pod| {
        let now = container_status(pod);
        let is_old = now["image"] == old["image"] && now["imageID"] == old["imageID"];
        let is_new = now["image"] == newer && now["imageID"] != old["imageID"] && !text(&now["imageID"]).is_empty();
        assert!(is_old || is_new, "neither the old image nor the new one: {now}");
        assert!(is_old || now["restartCount"] == 1, "{now}");
        assert!(is_old || now["state"]["running"].is_object(), "{now}");
        is_new && now["ready"] == true
    });
    assert_eq!(sandbox, case.running_ids("p", "POD"), "the sandbox stays");
    for field in ["uid", "podIP"] {
        assert_eq!(before["metadata"][field], after["metadata"][field]);
        assert_eq!(before["status"][field], after["status"][field]);
    }
    let side = |pod: &Value| pod["status"]["containerStatuses"][1].clone();
    assert_eq!(side(&before)["containerID"], side(&after)["containerID"], "the other container stays");
}
