//! Answers of a kube-apiserver 1.36 about the same object in JSON and in protobuf, in `tests/protobuf/`.

use std::{fs, path::Path, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    protobuf::{decode, encode, envelope},
    testing::schema,
};

fn recorded() -> Vec<(String, Value)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protobuf");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = files
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
        })
        .collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert!(all.len() > 30, "{}", all.len());
    all
}

/// What an answer in protobuf does not say.
fn without_losses(name: &str, mut answer: Value) -> Value {
    match name {
        "statefulset" => {
            // `TypeMeta` inside an object is not on the wire.
            let template = answer["spec"]["volumeClaimTemplates"][0].as_object_mut().unwrap();
            template.remove("apiVersion").unwrap();
            template.remove("kind").unwrap();
        }
        "persistentvolumeclaim" => {
            // A pointer that Go writes as `null`; read, it is the same as an absent one.
            for source in ["dataSource", "dataSourceRef"] {
                assert_eq!(answer["spec"][source].as_object_mut().unwrap().remove("apiGroup"), Some(Value::Null));
            }
        }
        _ => {}
    }
    answer
}

#[test]
fn the_bytes_of_an_object_are_those_of_go() {
    for (name, case) in recorded() {
        let schema = schema(case["type"].as_str().unwrap());
        let expected = STANDARD.decode(case["protobuf"].as_str().unwrap()).unwrap();
        let ours = envelope::encode_object(&schema, &case["answer"]).unwrap_or_else(|error| panic!("{name}: {error}"));
        if ours != expected {
            // The place is found more easily in JSON.
            let show = |bytes: &[u8]| format!("{:#}", decode(&schema, envelope::open(bytes).unwrap().raw).unwrap());
            assert_eq!(show(&ours), show(&expected), "{name}");
            assert_eq!(hex(&ours), hex(&expected), "{name}");
        }
    }
}

#[test]
fn the_json_of_a_message_is_that_of_go() {
    for (name, case) in recorded() {
        let schema = schema(case["type"].as_str().unwrap());
        let bytes = STANDARD.decode(case["protobuf"].as_str().unwrap()).unwrap();
        let opened = envelope::open(&bytes).unwrap();
        let mut ours = decode(&schema, opened.raw).unwrap_or_else(|error| panic!("{name}: {error}"));
        ours["apiVersion"] = opened.api_version.into();
        ours["kind"] = opened.kind.into();
        let expected = without_losses(&name, case["answer"].clone());
        assert_eq!(format!("{ours:#}"), format!("{expected:#}"), "{name}");
    }
}

#[test]
fn a_compact_object_is_the_same_message() {
    for (name, case) in recorded() {
        let schema = schema(case["type"].as_str().unwrap());
        let bytes = STANDARD.decode(case["protobuf"].as_str().unwrap()).unwrap();
        let compact = envelope::decode_object(&bytes, |_| Ok(Arc::clone(&schema))).unwrap();
        assert_eq!(hex(&envelope::encode_object(&schema, &compact).unwrap()), hex(&bytes), "{name}");
        assert!(compact["metadata"].get("creationTimestamp") != Some(&Value::Null), "{name}");
    }
}

#[test]
fn what_a_client_wrote_survives_both_ways() {
    for (name, case) in recorded() {
        let schema = schema(case["type"].as_str().unwrap());
        let manifest = &case["manifest"];
        let bytes = encode(&schema, manifest).unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = decode(&schema, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(decode(&schema, &encode(&schema, &again).unwrap()).unwrap(), again, "{name}");
    }
}

/// Sixteen bytes on a line.
fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x} ")).collect::<String>();
    bytes.chunks(16).map(|chunk| line(chunk) + "\n").collect()
}
