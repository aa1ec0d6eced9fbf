use http_body_util::BodyExt as _;

use super::*;

fn read(text: &str) -> Option<Result<NodeLogQuery, String>> {
    let pairs: Vec<(String, String)> = form_urlencoded(text);
    NodeLogQuery::parse(&pairs)
}

/// `a=b&c=d`, nothing escaped.
fn form_urlencoded(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn what_is_no_query() {
    assert_eq!(read(""), None);
    assert_eq!(read("pretty=1"), None);
}

#[test]
fn what_journalctl_is_asked() {
    let text = "query=kubelet&query=docker&sinceTime=2026-01-01T00:00:00Z&untilTime=2026-01-01T00:01:00Z\
                &tailLines=10&pattern=a -b&boot=-1";
    let query = read(text).unwrap().unwrap();
    let arguments = query.arguments(&query.services);
    assert_eq!(
        arguments.join("|"),
        "--utc|--no-pager|--output=short-precise|--since=@1767225600|--until=@1767225660|--pager-end|--lines=10|\
         --unit=kubelet|--unit=docker|--grep=a -b|--case-sensitive=false|--boot=-1"
    );
}

#[test]
fn queries_that_are_refused() {
    for (text, why) in [
        ("tailLines=1", "query: Required value: cannot be empty with options"),
        ("query=", "query: Required value: cannot be empty with options"),
        ("query=a&query=/b", "query: Invalid value: [\"a\", \"/b\"]: cannot specify a file and service"),
        ("query=/a&query=/b", "query: Invalid value: [\"/a\", \"/b\"]: cannot specify more than one file"),
        ("query=/a&tailLines=2", "query: Invalid value: [\"/a\"]: cannot specify file with options"),
        ("query=--file=x", "query: Invalid value: \"--file=x\": service name is invalid"),
        ("query=a b", "query: Invalid value: \"a b\": service name is invalid"),
        ("query=a&sinceTime=now", "sinceTime: Invalid value: \"now\": invalid time format"),
        ("query=a&tailLines=-1", "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive"),
        ("query=a&tailLines=x", "tailLines: Invalid value: \"x\": must be an integer"),
        ("query=a&boot=1", "boot: Invalid value: 1: must be between -100 and 0, inclusive"),
        (
            "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
            "untilTime: Invalid value: \"2026-01-01T00:00:00Z\": must be after `sinceTime`",
        ),
    ] {
        assert_eq!(read(text).unwrap().unwrap_err(), why, "{text}");
    }
    assert!(read(&format!("query=a&pattern={}", "x".repeat(2000))).unwrap().is_err());
}

#[tokio::test]
async fn files_of_services() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("log");
    std::fs::create_dir_all(root.join("windlass-test-b")).unwrap();
    std::fs::write(root.join("windlass-test-a.log"), "of a\n").unwrap();
    std::fs::write(root.join("windlass-test-b/windlass-test-b.log"), "of b\n").unwrap();
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", root.join("windlass-test-c")).unwrap();
    let ask = async |text: &str| {
        let answer = answer(root.clone(), read(text).unwrap().unwrap()).await;
        let code = answer.status().as_u16();
        (code, String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    };
    assert_eq!(ask("query=windlass-test-a").await, (200, "of a\n".into()));
    assert_eq!(ask("query=windlass-test-b&query=windlass-test-a").await, (200, "of b\nof a\n".into()));
    assert_eq!(ask("query=/windlass-test-a.log").await, (200, "of a\n".into()));
    assert_eq!(ask("query=windlass-test-c").await.0, 404);
    assert_eq!(ask("query=/windlass-test-c").await.0, 406);
    assert_eq!(ask("query=../secret").await.0, 406);
    assert_eq!(ask("query=windlass-test-none").await.0, 404);
}
