use std::io::Read as _;

use serde_json::json;

use super::*;

#[test]
fn what_may_be_a_secret_is_withheld_and_the_shape_stays() {
    let secretive = json!({
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "c", "args": ["hunter2"]}], "fieldOfLater": "hunter2"},
        "reason": "Unhealthy", "message": "Readiness probe failed: hunter2",
    });
    for path in ["/api/v1/pods", "/api/v1/events"] {
        let mut list = json!({"items": [secretive.clone()]});
        if path.ends_with("events") {
            list["items"][0]["spec"]["fieldOfLater"].take();
        }
        redacted(&mut list, path);
        let text = list.to_string();
        assert!(!text.contains("hunter2") && text.contains("web") && text.contains("(1 words withheld)"), "{text}");
    }
}

#[test]
fn secrets_are_not_even_asked_for() {
    assert!(
        OBJECTS
            .iter()
            .all(|(name, path)| !path.contains("secret") && !path.contains("configmap") && path.ends_with(name))
    );
}

#[test]
fn the_archive_is_the_owners_alone_and_never_replaces_a_file() {
    let packed = archive(&[("a/b.txt".to_owned(), b"hello".to_vec())]).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
    let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
    let mut text = String::new();
    entry.read_to_string(&mut text).unwrap();
    assert_eq!((entry.path().unwrap().to_str(), text.as_str()), (Some("windlass-bundle/a/b.txt"), "hello"));
    assert_eq!(entry.header().mode().unwrap(), 0o600);
    let path = std::env::temp_dir().join(format!("windlass-bundle-test-{}", std::process::id()));
    write(&path, &packed).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(write(&path, b"x").unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    std::fs::remove_file(path).unwrap();
}
