//! Volumes from API objects: ConfigMaps, Secrets, the downward API, tokens; alone and projected.

use std::fs;

use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, eventually, shared_dir::container_status};

use super::{hidden, map, say, stay, waits, with};
use crate::case::Case;

crate::cases![
    config_map_files,
    config_map_default_mode,
    config_map_items,
    config_map_binary_data,
    config_map_optional,
    config_map_missing,
    config_map_refreshed,
    secret_files_in_memory,
    secret_modes,
    secret_optional,
    secret_missing,
    secret_refreshed,
    downward_api_labels_and_annotations,
    downward_api_resource_field_ref,
    downward_api_refreshed,
    projected_sources,
    projected_in_memory,
    service_account_token_mode,
    service_account_token_mode_of_one_user,
    service_account_token_mode_of_a_group,
    service_account_token_audience_and_expiration,
    atomic_writer,
    volumes_of_objects_cannot_be_written,
];

fn config_map_files(case: &Case<'_>) {
    map(case, json!({"a": "1", "b": "2\n"}));
    let line = "cd /v/c; for f in a b; do stat -L -c %a $f; cat $f; done";
    assert_eq!(say(case, line, json!([{"name": "c", "configMap": {"name": "map"}}])), ["644", "1644", "2"]);
}

fn config_map_default_mode(case: &Case<'_>) {
    map(case, json!({"a": "1"}));
    let volume = json!([{"name": "c", "configMap": {"name": "map", "defaultMode": 0o400}}]);
    assert_eq!(say(case, "stat -L -c %a /v/c/a", volume), ["400"]);
}

fn config_map_items(case: &Case<'_>) {
    map(case, json!({"a": "1", "b": "2"}));
    let items = json!([{"key": "a", "path": "deep/down/x", "mode": 0o440}]);
    let volume = json!([{"name": "c", "configMap": {"name": "map", "items": items}}]);
    assert_eq!(say(case, "cd /v/c; stat -L -c %a deep/down/x; ls", volume), ["440", "deep"]);
}

fn config_map_binary_data(case: &Case<'_>) {
    case.apply(&[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"},
        "data": {"a": "1"}, "binaryData": {"bytes": "AAH/"}})]);
    let line = "od -An -tx1 /v/c/bytes | xargs; cat /v/c/a";
    assert_eq!(say(case, line, json!([{"name": "c", "configMap": {"name": "map"}}])), ["00 01 ff", "1"]);
}

fn config_map_optional(case: &Case<'_>) {
    let volume = json!([{"name": "c", "configMap": {"name": "map", "optional": true}}]);
    stay(case, "p", "until [ -e /v/c/late ]; do sleep 0.1; done; touch /shared/seen; exec sleep 100000", volume);
    case.wait_ready("p");
    map(case, json!({"late": "1"}));
    case.output("seen");
}

fn config_map_missing(case: &Case<'_>) {
    let volume = json!([{"name": "c", "configMap": {"name": "map"}}]);
    waits(case, volume, "configmap \"map\" not found", || map(case, json!({"a": "1"})));
}

/// Copies a file of a volume to the case's directory in a loop.
fn copies(file: &str) -> String {
    format!("while :; do cp {file} /shared/.seen && mv /shared/.seen /shared/seen; sleep 0.1; done")
}

#[track_caller]
fn sees(case: &Case<'_>, wanted: &str) {
    eventually(DEFAULT_TIMEOUT, &format!("{wanted} is seen"), || {
        let lines = case.shared.lines("seen");
        anyhow::ensure!(lines.iter().any(|l| l == wanted), "{lines:?}");
        Ok(())
    });
}

fn config_map_refreshed(case: &Case<'_>) {
    map(case, json!({"a": "one"}));
    stay(case, "p", &copies("/v/c/a"), json!([{"name": "c", "configMap": {"name": "map"}}]));
    sees(case, "one");
    map(case, json!({"a": "two"}));
    sees(case, "two");
}

fn secret_files_in_memory(case: &Case<'_>) {
    hidden(case, json!({"word": "psst"}));
    let line = "cat /v/s/word; echo; df /v/s | tail -1 | awk '{print $1}'";
    assert_eq!(say(case, line, json!([{"name": "s", "secret": {"secretName": "hidden"}}])), ["psst", "tmpfs"]);
}

fn secret_modes(case: &Case<'_>) {
    hidden(case, json!({"a": "1", "b": "2"}));
    let items = json!([{"key": "a", "path": "x/a", "mode": 0o600}, {"key": "b", "path": "b"}]);
    let volume = json!([{"name": "s", "secret": {"secretName": "hidden", "defaultMode": 0o440, "items": items}}]);
    assert_eq!(say(case, "stat -L -c %a /v/s/x/a /v/s/b", volume), ["600", "440"]);
}

fn secret_optional(case: &Case<'_>) {
    let volume = json!([{"name": "s", "secret": {"secretName": "hidden", "optional": true}}]);
    assert_eq!(say(case, "ls /v/s | wc -l", volume), ["0"]);
}

fn secret_missing(case: &Case<'_>) {
    let volume = json!([{"name": "s", "secret": {"secretName": "hidden"}}]);
    waits(case, volume, "secret \"hidden\" not found", || hidden(case, json!({"a": "1"})));
}

fn secret_refreshed(case: &Case<'_>) {
    hidden(case, json!({"a": "one"}));
    stay(case, "p", &copies("/v/s/a"), json!([{"name": "s", "secret": {"secretName": "hidden"}}]));
    sees(case, "one");
    hidden(case, json!({"a": "two"}));
    sees(case, "two");
}

fn downward(items: Value) -> Value {
    json!([{"name": "d", "downwardAPI": {"items": items}}])
}

fn field(path: &str, field: &str) -> Value {
    json!({"path": path, "fieldRef": {"fieldPath": field}})
}

fn downward_api_labels_and_annotations(case: &Case<'_>) {
    let items = json!([
        field("labels", "metadata.labels"),
        field("notes", "metadata.annotations"),
        field("one", "metadata.labels['b']"),
        field("name", "metadata.name"),
        field("space", "metadata.namespace")
    ]);
    let (container, spec) = with(downward(items));
    let metadata = json!({"labels": {"b": "2", "a": "1"}, "annotations": {"note": "say \"it\"\nnow"}});
    let line = "cd /v/d; cat labels; echo; grep ^note notes; for f in one name space; do cat $f; echo; done";
    case.start("p", line, metadata, container, spec);
    let wanted = ["a=\"1\"", "b=\"2\"", "note=\"say \\\"it\\\"\\nnow\"", "2", "p", &case.namespace];
    let output: Vec<String> = case.output("p").into_iter().filter(|l| !l.is_empty()).collect();
    assert_eq!(output, wanted);
}

fn downward_api_resource_field_ref(case: &Case<'_>) {
    let amount = |path: &str, resource: &str, divisor: &str| json!({"path": path, "resourceFieldRef": {"containerName": "main", "resource": resource, "divisor": divisor}});
    let items = json!([amount("cpu", "requests.cpu", "1m"), amount("memory", "limits.memory", "1Mi")]);
    let (mut container, spec) = with(downward(items));
    container["resources"] = json!({"requests": {"cpu": "125m"}, "limits": {"memory": "32Mi"}});
    assert_eq!(case.run("p", "cat /v/d/cpu; echo; cat /v/d/memory", container, spec), ["125", "32"]);
}

fn downward_api_refreshed(case: &Case<'_>) {
    stay(case, "p", &copies("/v/d/labels"), downward(json!([field("labels", "metadata.labels")])));
    case.wait_ready("p");
    let _ = case.kubectl(&["label", "pod", "p", "colour=blue"]);
    sees(case, "colour=\"blue\"");
}

fn projected(case: &Case<'_>) -> Value {
    map(case, json!({"a": "1"}));
    hidden(case, json!({"word": "psst"}));
    json!([{"name": "p", "projected": {"defaultMode": 0o440, "sources": [
        {"configMap": {"name": "map", "items": [{"key": "a", "path": "map/a", "mode": 0o400}]}},
        {"secret": {"name": "hidden"}}, {"downwardAPI": {"items": [field("name", "metadata.name")]}},
        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
        {"configMap": {"name": "none", "optional": true}}]}}])
}

fn projected_sources(case: &Case<'_>) {
    let volume = projected(case);
    let line = "cd /v/p; for f in map/a word name; do echo $(stat -L -c %a $f) $(cat $f); done; wc -l < token";
    assert_eq!(say(case, line, volume), ["400 1", "440 psst", "440 p", "0"]);
}

fn projected_in_memory(case: &Case<'_>) {
    let volume = projected(case);
    assert_eq!(say(case, "df /v/p | tail -1 | awk '{print $1}'", volume), ["tmpfs"]);
}

/// Mode, owner and group of the default token.
fn token(case: &Case<'_>, security: Value) -> Vec<String> {
    let line = "stat -L -c '%a %u %g' /var/run/secrets/kubernetes.io/serviceaccount/token";
    case.run("p", line, json!({}), json!({"securityContext": security}))
}

fn service_account_token_mode(case: &Case<'_>) {
    assert_eq!(token(case, json!({})), ["644 0 0"]);
}

fn service_account_token_mode_of_one_user(case: &Case<'_>) {
    assert_eq!(token(case, json!({"runAsUser": 1000})), ["600 1000 0"]);
}

fn service_account_token_mode_of_a_group(case: &Case<'_>) {
    assert_eq!(token(case, json!({"runAsUser": 1000, "fsGroup": 4000}))[0].split(' ').next(), Some("640"));
}

fn service_account_token_audience_and_expiration(case: &Case<'_>) {
    let source = json!({"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}});
    let volume = json!([{"name": "p", "projected": {"sources": [source]}}]);
    // The payload of a token, without base64 padding.
    let line = "cut -d. -f2 /v/p/t | tr '_-' '/+' | (cat; echo ===) | base64 -d 2>/dev/null";
    let claims = say(case, line, volume).concat();
    let claims: Value =
        serde_json::Deserializer::from_str(&claims).into_iter().next().and_then(Result::ok).unwrap_or_default();
    assert_eq!(claims["aud"], json!(["vault"]), "{claims}");
    let number = |key: &str| claims[key].as_i64().unwrap_or_default();
    assert_eq!(number("exp") - number("iat"), 600, "{claims}");
    assert_eq!(claims["kubernetes.io"]["pod"]["name"], "p", "{claims}");
}

fn atomic_writer(case: &Case<'_>) {
    map(case, json!({"a": "one", "b": "gone later"}));
    let line = "cd /v/c; readlink a; readlink ..data; until [ ! -e b ]; do sleep 0.1; done; readlink ..data; cat a; echo; \
                ls -A | grep -c '^\\.\\.[0-9]'; ls -L a b 2>/dev/null";
    let (container, spec) = with(json!([{"name": "c", "configMap": {"name": "map"}}]));
    case.start("p", line, json!({}), container, spec);
    case.wait("p", "runs", |p| container_status(p)["state"]["running"].is_object());
    case.apply(&[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"a": "two"}})]);
    let output = case.output("p");
    // One link per name, one swapped directory, and nothing of the old one.
    assert!(output[0] == "..data/a" && output[1].starts_with("..") && output[2].starts_with(".."), "{output:?}");
    assert!(output[1] != output[2] && output[3..] == ["two", "1", "a"], "{output:?}");
}

fn volumes_of_objects_cannot_be_written(case: &Case<'_>) {
    map(case, json!({"a": "one"}));
    hidden(case, json!({"a": "one"}));
    let victim = case.shared.0.join("victim");
    fs::create_dir(&victim).expect("a directory can be created");
    fs::write(victim.join("kept"), "").expect("a file can be written");
    let volumes = json!([{"name": "c", "configMap": {"name": "map"}}, {"name": "s", "secret": {"secretName": "hidden"}},
        downward(json!([field("a", "metadata.name")]))[0], {"name": "p", "projected": {"sources": [
            {"configMap": {"name": "map"}}, {"secret": {"name": "hidden", "items": [{"key": "a", "path": "b"}]}}]}}]);
    // A link that the container has created must not cause changes on the node.
    let line = format!(
        "for v in c s d p; do touch /v/$v/x; rm /v/$v/..data && ln -s {0} /v/$v/..data; ln -s {0} /v/$v/..data_tmp; done \
         > /shared/.tried 2>&1; mv /shared/.tried /shared/tried; \
         until grep -q two /v/c/a && grep -q two /v/s/a && grep -q two /v/p/a && grep -q two /v/p/b; do sleep 0.1; done; \
         touch /shared/seen; exec sleep 100000",
        victim.display()
    );
    stay(case, "p", &line, volumes);
    let tried = case.output("tried");
    map(case, json!({"a": "two"}));
    hidden(case, json!({"a": "two"}));
    case.output("seen");
    assert!(victim.join("kept").exists(), "{tried:?}");
    let refused = tried.iter().filter(|l| l.contains("Read-only file system")).count();
    assert_eq!((tried.len(), refused), (12, 12), "{tried:?}");
}
