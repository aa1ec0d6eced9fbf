use std::fmt::Debug;

use serde::Serialize;
use serde_json::Value;

use super::*;

/// What Go has written: `recorded/record.go`.
const RECORDED: &str = include_str!("recorded/messages.tsv");

/// Fields that newer clients know and the façade does not.
const UNKNOWN: [&str; 3] = ["user_specified_image", "runtime_handler", "sandbox_config"];

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A value without what is left out of JSON by default.
fn without_defaults(value: Value) -> Value {
    let is_default = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) => false,
    };
    match value {
        Value::Object(all) => {
            let all = all.into_iter().map(|(key, value)| (key, without_defaults(value)));
            Value::Object(all.filter(|(_, value)| !is_default(value)).collect())
        }
        Value::Array(all) => all.into_iter().map(without_defaults).collect(),
        other => other,
    }
}

/// A message as Go has it, without the fields that only Go knows; and whether there were any.
fn known(mut value: Value) -> (Value, bool) {
    let mut newer = false;
    if let Some(image) = value.get_mut("image").and_then(Value::as_object_mut) {
        newer |= image.remove("annotations").is_some();
        UNKNOWN.iter().for_each(|name| newer |= image.remove(*name).is_some());
    }
    if let Some(all) = value.as_object_mut() {
        UNKNOWN.iter().for_each(|name| newer |= all.remove(*name).is_some());
    }
    (without_defaults(value), newer)
}

fn check<M: Message + Serialize + Debug>(fields: &Value, bytes: &[u8]) {
    let read = M::decoded(bytes).unwrap();
    let (wanted, newer) = known(fields.clone());
    assert_eq!(without_defaults(serde_json::to_value(&read).unwrap()), wanted);
    if !newer {
        assert_eq!(read.encoded(), bytes, "{read:?}");
    }
    // Whatever is cut off, no reader panics.
    for end in 0..bytes.len() {
        let _ = M::decoded(&bytes[..end]);
    }
}

#[test]
fn messages_are_those_of_go() {
    let mut count = 0;
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, fields, bytes] = columns[..] else { panic!("{line}") };
        let (fields, bytes): (Value, _) = (serde_json::from_str(fields).unwrap(), from_hex(bytes));
        let check = match name {
            "VersionRequest" => check::<VersionRequest>,
            "VersionResponse" => check::<VersionResponse>,
            "StatusRequest" => check::<StatusRequest>,
            "StatusResponse" => check::<StatusResponse>,
            "ListContainersRequest" => check::<ListContainersRequest>,
            "ListContainersResponse" => check::<ListContainersResponse>,
            "ContainerStatusRequest" => check::<ContainerStatusRequest>,
            "ContainerStatusResponse" => check::<ContainerStatusResponse>,
            "StopContainerRequest" => check::<StopContainerRequest>,
            "ExecSyncRequest" => check::<ExecSyncRequest>,
            "ExecSyncResponse" => {
                // In JSON bytes are base64.
                let wanted =
                    ExecSyncResponse { stdout: vec![0, 1, 2, 0x80, 0xff], stderr: b"e".to_vec(), exit_code: 137 };
                assert_eq!(ExecSyncResponse::decoded(&bytes).unwrap(), wanted);
                assert_eq!(wanted.encoded(), bytes);
                count += 1;
                continue;
            }
            "ListPodSandboxRequest" => check::<ListPodSandboxRequest>,
            "ListPodSandboxResponse" => check::<ListPodSandboxResponse>,
            "PodSandboxStatusResponse" => check::<PodSandboxStatusResponse>,
            "ListImagesResponse" => check::<ListImagesResponse>,
            "ImageStatusRequest" => check::<ImageStatusRequest>,
            "ImageStatusResponse" => check::<ImageStatusResponse>,
            "PullImageRequest" => check::<PullImageRequest>,
            "PullImageResponse" => check::<PullImageResponse>,
            "ImageFsInfoResponse" => check::<ImageFsInfoResponse>,
            "ContainerStatsResponse" => check::<ContainerStatsResponse>,
            "ListContainerStatsRequest" => check::<ListContainerStatsRequest>,
            other => panic!("{other} is not in this table"),
        };
        check(&fields, &bytes);
        count += 1;
    }
    assert_eq!(count, 25);
}

#[test]
fn no_state_is_another_thing_than_the_first_one() {
    let filter = |bytes: &[u8]| ContainerFilter::decoded(bytes).unwrap().state;
    assert_eq!(filter(&[]), None);
    assert_eq!(filter(&[0x12, 0]), Some(StateValue { state: container_state::CREATED }));
}

#[test]
fn what_is_no_message_is_refused() {
    for bytes in [
        // It ends inside a tag, a length, a text.
        &[0x80][..],
        &[0x0a],
        &[0x0a, 3, b'a'],
        // A number in place of a text, and the other way round.
        &[0x08, 1],
        &[0x12, 1, b'a'],
        // Not UTF-8.
        &[0x0a, 1, 0xff],
        // Field 0, a group.
        &[0x02, 0],
        &[0x0b],
    ] {
        assert!(StopContainerRequest::decoded(bytes).is_err(), "{bytes:?}");
    }
    // Fields that are not known are skipped, whatever they are.
    let newer = [0x0a, 1, b'a', 0x98, 0x06, 1, 0xa2, 0x06, 2, 8, 9, 0xad, 0x06, 1, 2, 3, 4];
    assert_eq!(StopContainerRequest::decoded(&newer).unwrap().container_id, "a");
}
