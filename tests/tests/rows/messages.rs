//! What a container leaves behind as its last words.

use serde_json::{Value, json};
use windlass_tests::sharing::{main_of, shell};

use crate::row::{Row, text};

crate::rows![
    termination_message_of_the_default_path,
    termination_message_file_mode,
    termination_message_of_another_path_as_non_root,
    termination_message_policy_file_reads_no_log,
    termination_message_fallback_to_logs_on_error,
    termination_message_fallback_prefers_the_file,
    termination_message_fallback_empty_on_success,
    termination_message_fallback_is_cut,
    termination_message_is_its_last_4096_bytes,
    termination_message_as_large_as_a_disk,
    termination_messages_of_a_pod_share_12_kib,
];

fn message(row: &Row<'_>, line: &str, container: Value) -> Value {
    row.shell("p", line, container, json!({"restartPolicy": "Never"}));
    let pod = row.wait("p", "has ended", |p| main_of(p)["state"]["terminated"].is_object());
    main_of(&pod)["state"]["terminated"]["message"].clone()
}

fn fallback() -> Value {
    json!({"terminationMessagePolicy": "FallbackToLogsOnError"})
}

fn termination_message_of_the_default_path(row: &Row<'_>) {
    assert_eq!(message(row, "printf done > /dev/termination-log", json!({})), "done");
}

fn termination_message_file_mode(row: &Row<'_>) {
    let seen = row.run("p", "stat -c '%a %s' /dev/termination-log", json!({}), json!({}));
    assert_eq!(seen, ["666 0"]);
}

fn termination_message_of_another_path_as_non_root(row: &Row<'_>) {
    let container = json!({"terminationMessagePath": "/tmp/own", "securityContext": {"runAsUser": 1000}});
    assert_eq!(message(row, "printf mine > /tmp/own; exit 1", container), "mine");
}

fn termination_message_policy_file_reads_no_log(row: &Row<'_>) {
    assert_eq!(message(row, "echo words; exit 1", json!({})), Value::Null);
}

fn termination_message_fallback_to_logs_on_error(row: &Row<'_>) {
    assert_eq!(message(row, "echo last words; exit 1", fallback()), "last words\n");
}

fn termination_message_fallback_prefers_the_file(row: &Row<'_>) {
    assert_eq!(message(row, "echo log; printf file > /dev/termination-log; exit 1", fallback()), "file");
}

fn termination_message_fallback_empty_on_success(row: &Row<'_>) {
    assert_eq!(message(row, "echo words; exit 0", fallback()), Value::Null);
}

fn termination_message_fallback_is_cut(row: &Row<'_>) {
    // Eighty lines at most, and no more than 2048 bytes of them.
    let told = message(row, "for i in $(seq 1000 1200); do echo $i; done; exit 1", fallback());
    let lines: Vec<&str> = text(&told).lines().collect();
    assert_eq!((lines.len(), lines.first(), lines.last()), (80, Some(&"1121"), Some(&"1200")));
}

fn termination_message_is_its_last_4096_bytes(row: &Row<'_>) {
    let told = message(row, "(yes x | head -c 9000; printf end) > /dev/termination-log", json!({}));
    assert_eq!((text(&told).len(), text(&told).ends_with("end")), (4096, true));
}

fn termination_message_as_large_as_a_disk(row: &Row<'_>) {
    let line = "printf end | dd of=/dev/termination-log bs=1 seek=8000000000 conv=notrunc; exit 1";
    let told = message(row, line, json!({}));
    assert_eq!((text(&told).len(), text(&told).ends_with("end")), (4096, true));
    assert!(row.most_memory() < 1024, "{} MiB", row.most_memory());
}

fn termination_messages_of_a_pod_share_12_kib(row: &Row<'_>) {
    let line = "yes x | head -c 9000 > /dev/termination-log";
    let all: Vec<Value> =
        ["a", "b", "c", "d"].iter().map(|name| json!({"name": name, "command": shell(line)})).collect();
    row.pod("p", json!({"restartPolicy": "Never", "containers": all}));
    let pod = row.phase("p", "Succeeded");
    for at in 0..4 {
        let told = &pod["status"]["containerStatuses"][at]["state"]["terminated"]["message"];
        assert_eq!(text(told).len(), 12 * 1024 / 4);
    }
}
