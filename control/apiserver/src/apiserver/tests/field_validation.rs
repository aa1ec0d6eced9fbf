//! Unknown and duplicate fields, which the query parameter `fieldValidation` refuses, warns about or ignores.

use super::*;

#[tokio::test]
async fn unknown_fields_are_refused_warned_about_or_ignored() {
    let api = with_namespace().await;
    let body = json!({"metadata": {"name": "m"}, "colour": "red"});
    let strict = call(&api, "POST", &format!("{MAPS}?fieldValidation=Strict"), body.clone()).await;
    assert_eq!(strict.code, 400);
    assert!(
        strict.body["message"].as_str().unwrap().ends_with("strict decoding error: unknown field \"colour\""),
        "{}",
        strict.body
    );
    let warned = call(&api, "POST", &format!("{MAPS}?dryRun=All"), body.clone()).await;
    assert_eq!(
        (warned.code, warned.warnings.as_slice()),
        (201, &["299 - \"unknown field \\\"colour\\\"\"".to_owned()][..])
    );
    let unknown = call(&api, "POST", &format!("{MAPS}?fieldValidation=Foo"), body.clone()).await;
    assert_eq!(
        (unknown.code, unknown.body["message"].as_str()),
        (
            422,
            Some(
                "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Foo\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
            )
        )
    );
    let ignored = call(&api, "POST", &format!("{MAPS}?fieldValidation=Ignore&dryRun=All"), body).await;
    assert!(ignored.code == 201 && ignored.warnings.is_empty());
    assert_eq!(call(&api, "GET", &format!("{MAPS}/m"), Value::Null).await.code, 404, "a dry run writes nothing");
}

/// Texts of kube-apiserver 1.36.2; of a patch it repeats the whole result, ours the patch.
#[tokio::test]
async fn unknown_and_duplicate_fields_are_told_as_upstream_tells_them() {
    let api = with_namespace().await;
    let body = r#"{"metadata":{"name":"m","labels":{"a":"1","a":"2"}},"zz":{"b":1,"b":2},"zz":1,"data":{"k":"1","k":"2"},"aa":1}"#;
    let told = [
        r#"duplicate field "metadata.labels.a""#,
        r#"unknown field "zz""#,
        r#"duplicate field "data.k""#,
        r#"unknown field "aa""#,
    ];
    let yaml = "metadata:\n  name: m\nzz: 1\ndata:\n  k: '1'\n  k: '2'\n  k: '3'\n";
    let lines = [r#"line 6: key "k" already set in map"#, r#"line 7: key "k" already set in map"#];
    let cannot = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: ";
    let all_lines = format!("yaml: unmarshal errors:\n  {}", lines.join("\n  "));
    let unknown = r#"unknown field "zz""#;
    let in_yaml = [lines[0], lines[1], unknown];
    let merge = r#"{"zz":1,"data":{"k":"5","k":"6"}}"#;
    let of_merge = [r#"duplicate field "data.k""#, unknown];
    let json_patch = r#"[{"op":"add","path":"/x","path":"/zz","value":1}]"#;
    let of_json_patch = [r#"json patch duplicate field "[0].path""#, unknown];
    let unfit = |patch: &str, of: [&str; 2]| {
        let patch: Value = serde_json::from_str(patch).unwrap();
        let detail = format!("Invalid value: {:?}: strict decoding error: {}", patch.to_string(), of.join(", "));
        (422, format!("\"\" is invalid: patch: {detail}"))
    };
    let apply = yaml.replace("zz: 1\n", "apiVersion: v1\nkind: ConfigMap\n");
    let applied = [r#"line 7: key "k" already set in map"#, r#"line 8: key "k" already set in map"#];
    let apply_error = format!(
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {}",
        applied.join("\n  ")
    );
    let cases = [
        ("POST", "", "application/json", body, 201, (400, format!("{cannot}{}", told.join(", "))), &told[..]),
        ("PUT", "/m", "application/yaml", yaml, 200, (400, format!("{cannot}{all_lines}, {unknown}")), &in_yaml[..]),
        ("PATCH", "/m", "application/merge-patch+json", merge, 200, unfit(merge, of_merge), &of_merge[..]),
        (
            "PATCH",
            "/m",
            "application/json-patch+json",
            json_patch,
            200,
            unfit(json_patch, of_json_patch),
            &of_json_patch,
        ),
        (
            "PATCH",
            "/mm",
            "application/apply-patch+yaml",
            &apply.replace(" m\n", " mm\n"),
            201,
            (400, apply_error),
            &applied[..],
        ),
    ];
    for (method, path, kind, body, code, (refused, why), warnings) in cases {
        let user = User::internal("test");
        let path = format!("{MAPS}{path}?fieldManager=f&fieldValidation=");
        let reply = send(&api, &user, method, &format!("{path}Strict"), kind, "*/*", body).await;
        assert_eq!(reply.code, refused, "{method} {kind}: {}", reply.body);
        assert!(reply.body["message"].as_str().unwrap().ends_with(&why), "{method} {kind}: {}", reply.body);
        let reply = send(&api, &user, method, &format!("{path}Warn"), kind, "*/*", body).await;
        let told: Vec<String> = warnings.iter().map(|text| format!("299 - {text:?}")).collect();
        assert_eq!((reply.code, &reply.warnings), (code, &told), "{method} {kind}: {}", reply.body);
    }
}
