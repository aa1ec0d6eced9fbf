//! Images: when they are pulled, with whose name, and how they are shown.

use base64::Engine as _;
use serde_json::{Value, json};
use windlass_tests::{PATIENCE, eventually, sharing::main_of};

use crate::row::{Row, STAY, text};

crate::rows![
    pull_policy_of_latest_is_always,
    pull_policy_of_no_tag_is_always,
    pull_policy_of_a_tag_is_if_not_present,
    pull_policy_always_pulls_before_each_start,
    pull_policy_if_not_present_present,
    pull_policy_if_not_present_absent,
    pull_policy_never,
    pull_that_fails_after_it_has_begun,
    image_pull_secrets_none,
    image_pull_secrets_missing,
    image_pull_secrets_docker_config_json,
    image_pull_secrets_legacy_docker_cfg,
    image_pull_secrets_tried_in_order,
    image_pull_secrets_longest_path_first,
    image_of_others_is_asked_for_again,
    event_pulled,
    image_id_is_the_repo_digest,
    image_by_digest,
    image_by_tag_and_digest,
];

/// An image of its own for this row in the public registry.
fn published(row: &Row<'_>) -> String {
    let name = format!("127.0.0.1:5000/{}:1", row.namespace);
    row.image(&name, &format!("LABEL row={}", row.namespace));
    let _ = row.world.docker(&["push", "-q", &name]);
    let _ = row.world.docker(&["rmi", &name]);
    name
}

fn policy(row: &Row<'_>, image: &str) -> String {
    row.shell("p", STAY, json!({"image": image}), json!({}));
    row.kubectl(&["get", "pod", "p", "-o", "jsonpath={.spec.containers[0].imagePullPolicy}"])
}

fn pull_policy_of_latest_is_always(row: &Row<'_>) {
    assert_eq!(policy(row, "busybox:latest"), "Always");
}

fn pull_policy_of_no_tag_is_always(row: &Row<'_>) {
    assert_eq!(policy(row, "busybox"), "Always");
    row.ready("p");
}

fn pull_policy_of_a_tag_is_if_not_present(row: &Row<'_>) {
    assert_eq!(policy(row, "windlass/busybox:1"), "IfNotPresent");
}

fn count(row: &Row<'_>, words: &str) -> usize {
    row.events("p").lines().filter(|l| l.contains(words)).count()
}

fn pull_policy_always_pulls_before_each_start(row: &Row<'_>) {
    let image = published(row);
    let container = json!({"image": image, "imagePullPolicy": "Always"});
    row.shell("p", "[ -e /shared/again ] && exec sleep 100000; touch /shared/again; exit 1", container, json!({}));
    row.wait("p", "runs again", |p| main_of(p)["restartCount"] == 1 && main_of(p)["ready"] == true);
    let pulled = format!("Successfully pulled image \"{image}\"");
    eventually(PATIENCE, "it was pulled twice", || {
        anyhow::ensure!(count(row, &pulled) == 2, "{}", row.events("p"));
        Ok(())
    });
}

fn pull_policy_if_not_present_present(row: &Row<'_>) {
    row.shell("p", STAY, json!({"imagePullPolicy": "IfNotPresent"}), json!({}));
    row.says("p", "Pulled Container image \"windlass/busybox:1\" already present on machine");
    assert_eq!(count(row, "Pulling"), 0);
}

fn pull_policy_if_not_present_absent(row: &Row<'_>) {
    let image = published(row);
    row.shell("p", STAY, json!({"image": image, "imagePullPolicy": "IfNotPresent"}), json!({}));
    row.ready("p");
    row.says("p", &format!("Pulling Pulling image \"{image}\""));
}

fn pull_policy_never(row: &Row<'_>) {
    let image = published(row);
    row.shell("p", STAY, json!({"image": image, "imagePullPolicy": "Never"}), json!({}));
    row.waiting("p", "ErrImageNeverPull");
    let _ = row.world.docker(&["pull", "-q", &image]);
    row.shell("q", STAY, json!({"image": image, "imagePullPolicy": "Never"}), json!({}));
    row.ready("q");
}

fn pull_that_fails_after_it_has_begun(row: &Row<'_>) {
    let registry = row.failing_registry();
    for (pod, tag, why) in [("p", "windows", "no matching manifest"), ("q", "corrupt", "verification failed")] {
        let image = registry.image(&format!("{tag}-{}", row.namespace));
        row.shell(pod, STAY, json!({"image": image}), json!({}));
        row.waiting(pod, "ErrImagePull");
        row.says(pod, &format!("Failed Failed to pull image \"{image}\": "));
        row.says(pod, "Failed Error: ErrImagePull");
        let told = row.waiting(pod, "ImagePullBackOff");
        assert!(text(&told["message"]).contains(why), "{told}");
    }
}

/// The registry that lets nobody in but `me` with `secret`, and two images in it.
fn private(row: &Row<'_>) -> String {
    let told = row.once("private-registry", |row| {
        row.registry_with_password();
        vec![String::new()]
    });
    assert_eq!(told.len(), 1);
    "127.0.0.1:5001/private/busybox:1".to_owned()
}

fn auth(user: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(format!("{user}:secret"))
}

fn secret(row: &Row<'_>, name: &str, kind: &str, file: &str, content: Value) {
    row.apply(&[json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "type": format!("kubernetes.io/{kind}"), "stringData": {file: content.to_string()}})]);
}

fn config(row: &Row<'_>, name: &str, registries: &[(&str, &str)]) {
    let auths: serde_json::Map<String, Value> =
        registries.iter().map(|(registry, user)| ((*registry).to_owned(), json!({"auth": auth(user)}))).collect();
    secret(row, name, "dockerconfigjson", ".dockerconfigjson", json!({"auths": auths}));
}

fn with(row: &Row<'_>, secrets: &[&str]) {
    let image = private(row);
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    let container = json!({"image": image, "imagePullPolicy": "Always"});
    row.shell("p", STAY, container, json!({"imagePullSecrets": secrets}));
}

fn image_pull_secrets_none(row: &Row<'_>) {
    with(row, &[]);
    row.waiting("p", "ErrImagePull");
}

fn image_pull_secrets_missing(row: &Row<'_>) {
    with(row, &["none"]);
    row.says("p", "FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (none)");
}

fn image_pull_secrets_docker_config_json(row: &Row<'_>) {
    config(row, "mine", &[("127.0.0.1:5001", "me")]);
    with(row, &["mine"]);
    row.ready("p");
    assert!(!row.log().contains(&auth("me")), "no credentials in the log");
}

fn image_pull_secrets_legacy_docker_cfg(row: &Row<'_>) {
    secret(row, "old", "dockercfg", ".dockercfg", json!({"127.0.0.1:5001": {"auth": auth("me")}}));
    with(row, &["old"]);
    row.ready("p");
}

fn image_pull_secrets_tried_in_order(row: &Row<'_>) {
    config(row, "wrong", &[("127.0.0.1:5001", "somebody")]);
    config(row, "right", &[("127.0.0.1:5001", "me")]);
    with(row, &["wrong", "right"]);
    row.ready("p");
}

fn image_pull_secrets_longest_path_first(row: &Row<'_>) {
    config(row, "both", &[("127.0.0.1:5001", "somebody"), ("127.0.0.1:5001/private", "me")]);
    with(row, &["both"]);
    row.ready("p");
    assert_eq!(count(row, "Failed"), 0);
}

/// What another pod has pulled with its secret lies on the node: that is no reason to give it to everybody.
fn image_of_others_is_asked_for_again(row: &Row<'_>) {
    config(row, "mine", &[("127.0.0.1:5001", "me")]);
    with(row, &["mine"]);
    row.ready("p");
    let image = private(row);
    let container = json!({"image": image, "imagePullPolicy": "IfNotPresent"});
    row.shell("thief", STAY, container.clone(), json!({}));
    row.waiting("thief", "ErrImagePull");
    let never = json!({"image": image, "imagePullPolicy": "Never"});
    row.shell("idle", STAY, never, json!({}));
    row.waiting("idle", "ErrImageNeverPull");
    row.shell("owner", STAY, container, json!({"imagePullSecrets": [{"name": "mine"}]}));
    row.ready("owner");
    // The very same image, loaded by hand under another name.
    row.shell("other", STAY, json!({"imagePullPolicy": "Never"}), json!({}));
    row.ready("other");
}

fn event_pulled(row: &Row<'_>) {
    let image = published(row);
    row.shell("p", STAY, json!({"image": image}), json!({}));
    row.ready("p");
    row.says("p", &format!("Pulled Successfully pulled image \"{image}\" in "));
    let told = row.events("p");
    assert!(told.contains("including waiting). Image size: ") && told.contains(" bytes."), "{told}");
}

/// The digest under which the registry has an image.
fn digest(row: &Row<'_>, image: &str) -> String {
    let _ = row.world.docker(&["pull", "-q", image]);
    let told = row.world.docker(&["inspect", "-f", "{{index .RepoDigests 0}}", image]);
    let _ = row.world.docker(&["rmi", image]);
    told.trim().rsplit('@').next().unwrap_or_default().to_owned()
}

fn image_id_is_the_repo_digest(row: &Row<'_>) {
    let image = published(row);
    let digest = digest(row, &image);
    row.shell("p", STAY, json!({"image": image}), json!({}));
    let pod = row.ready("p");
    assert!(text(&main_of(&pod)["imageID"]).ends_with(&format!("{}@{digest}", row.namespace)), "{}", main_of(&pod));
}

fn image_by_digest(row: &Row<'_>) {
    let image = published(row);
    let by = format!("{}@{}", image.trim_end_matches(":1"), digest(row, &image));
    row.shell("p", STAY, json!({"image": by}), json!({}));
    row.ready("p");
}

fn image_by_tag_and_digest(row: &Row<'_>) {
    let image = published(row);
    // The digest decides: nobody has such a tag.
    let by = format!("{}:none@{}", image.trim_end_matches(":1"), digest(row, &image));
    row.shell("p", STAY, json!({"image": by}), json!({}));
    row.ready("p");
}
