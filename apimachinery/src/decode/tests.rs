//! What kube-apiserver 1.36.2 reports for the same bodies.

use super::*;

fn lines(text: &str) -> Vec<String> {
    match decode(text.as_bytes(), ContentType::Yaml).unwrap().duplicates {
        Duplicates::Lines(lines) => lines,
        Duplicates::Paths(paths) => paths,
    }
}

#[test]
fn problems_of_a_document_come_in_its_order() {
    let document = br#"{"metadata":{"name":"fv","labels":{"app":"nginx","app":"x"}},"spec":{"unknownField1":"val1",
        "unknownDupField":{"a":1,"a":2},"unknownDupField":"w","replicas":0,"replicas":0,"replicas":1,
        "template":{"spec":{"zeta":1,"containers":[{"name":"nginx","unknownNested":"x","imagePullPolicy":"Always",
        "imagePullPolicy":"Never"}],"alpha":1}}},"aa":1}"#;
    let Duplicates::Paths(duplicates) = decode(document, ContentType::Json).unwrap().duplicates else { panic!() };
    let unknown = [
        "aa",
        "spec.template.spec.alpha",
        "spec.template.spec.containers[0].unknownNested",
        "spec.template.spec.zeta",
        "spec.unknownDupField",
        "spec.unknownField1",
    ]
    .map(str::to_owned);
    assert_eq!(
        in_document_order(document, &duplicates, &unknown),
        [
            r#"duplicate field "metadata.labels.app""#,
            r#"unknown field "spec.unknownField1""#,
            r#"unknown field "spec.unknownDupField""#,
            r#"duplicate field "spec.replicas""#,
            r#"unknown field "spec.template.spec.zeta""#,
            r#"unknown field "spec.template.spec.containers[0].unknownNested""#,
            r#"duplicate field "spec.template.spec.containers[0].imagePullPolicy""#,
            r#"unknown field "spec.template.spec.alpha""#,
            r#"unknown field "aa""#,
        ]
    );
}

#[test]
fn keys_of_yaml_are_told_by_the_line_of_their_value() {
    let deployment = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: fvy
  labels: {a: b, a: c}
spec:
  replicas: 1
  replicas: 2
  replicas: 3
  unknownField: x
  zz: 1
  zz: 2
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      alpha: 1
      containers:
      - name: a
        image: a
        unknownC: 1
      containers:
      - name: a
        image: b
        image: c
        stdin:
        stdin: 
";
    let expected = [
        r#"line 5: key "a" already set in map"#,
        r#"line 8: key "replicas" already set in map"#,
        r#"line 9: key "replicas" already set in map"#,
        r#"line 12: key "zz" already set in map"#,
        r#"line 25: key "image" already set in map"#,
        r#"line 27: key "stdin" already set in map"#,
        r#"line 23: key "containers" already set in map"#,
    ];
    assert_eq!(lines(deployment), expected);
    let decoded = decode(deployment.as_bytes(), ContentType::Yaml).unwrap();
    assert_eq!(decoded.duplicates.errors(), [format!("yaml: unmarshal errors:\n  {}", expected.join("\n  "))]);
    assert_eq!(decoded.value["spec"]["replicas"], 3);
}

#[test]
fn keys_of_yaml_are_told_with_their_type() {
    let map = "\
data:
  true: a
  true: b
  \"q\": 'a'
  q:
    x
  1.5: a
  1.50: b
  \"a\\\"b\": 1
  \"a\\\"b\": \"2\"
";
    assert_eq!(
        lines(map),
        [
            "line 3: key true already set in map",
            r#"line 6: key "q" already set in map"#,
            "line 8: key 1.5 already set in map",
            r#"line 10: key "a\"b" already set in map"#,
        ]
    );
    // Keys of a merge (`<<`) yield to the map's own. Upstream reports those as duplicates.
    assert_eq!(lines("a: &x\n  b: '1'\nc:\n  <<: *x\n  b: c\n"), [""; 0]);
}

/// What kube-apiserver 1.36.2 makes of the same texts.
#[test]
fn the_first_document_of_a_text_is_read() {
    let map = serde_json::json!({"a": "b"});
    for (text, value) in [
        ("---\na: b\n---\n", &map),
        ("a: b\n---\na: c\n", &map),
        ("# Source: chart/templates/a.yaml\n\n---\n# of a\na: b\n--- # next\n{{{\n", &map),
        ("\u{feff}---\r\na: b\r\n---\r\n", &map),
        ("%YAML 1.1\n---\na: b\n...\nc\n", &map),
        ("--- {a: b}\n---\nc: d\n", &map),
        ("a: b\n...", &map),
        ("---\n---\na: b\n", &Value::Null),
        ("---\n", &Value::Null),
        ("", &Value::Null),
    ] {
        assert_eq!(
            decode(text.as_bytes(), ContentType::Yaml).map(|decoded| decoded.value).as_ref(),
            Ok(value),
            "{text:?}"
        );
    }
    let text = "a: |\n  x\n  ---\n  y\nb: ---c\n";
    let decoded = decode(text.as_bytes(), ContentType::Yaml).unwrap().value;
    assert_eq!(decoded, serde_json::json!({"a": "x\n---\ny\n", "b": "---c"}));
}

#[test]
fn errors_do_not_tell_how_the_program_is_made() {
    for text in
        ["~: b\n", "a: b: c\n", "\ta: b\n", "a: *x\n", "a: !!binary x\n", "a: [\n", "? [a]\n: b\n", "a: !x y\nb"]
    {
        if let Err(why) = decode(text.as_bytes(), ContentType::Yaml) {
            let told =
                ["Option", "from_str", "serde", "Rust", "Policy", "Config"].iter().any(|word| why.contains(word));
            assert!(!told, "{text:?}: {why}");
        }
    }
}
